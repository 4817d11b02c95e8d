"""What the server checks of a spec beside types and bounds: the rules of `spec_rules`, said in CEL. Used by `crd`.

One entry for each rule that needs nothing but the object. What CEL cannot say is left to the operator, which answers
with `Accepted=False`: the size of `kwargs`, and the content of free-form values.
"""

from __future__ import annotations

from rollout_contract import fields as f
from rollout_contract import names, quantities
from rollout_contract.crd_rule import DUPLICATE, FORBIDDEN, REQUIRED, CelRule
from rollout_contract.pod_template import GPU_RESOURCE, RESERVED_ENV, WORKER_CONTAINER

_TASKS = "spec.env.tasks"
_GROUP = "spec.workerGroups[]"
_RULES = "spec.failurePolicy.rules"
_CONTAINERS = "self.template.spec.containers"
_HAS_CONTAINERS = "has(self.template) && has(self.template.spec) && has(self.template.spec.containers)"
_LIMITS = "has(c.resources) && has(c.resources.limits)"
_WORKER = (
    f"{_CONTAINERS}.exists(w, w.name == '{WORKER_CONTAINER}') "
    f"? c.name == '{WORKER_CONTAINER}' : c.name == {_CONTAINERS}[0].name"
)


def _size(at: str, low: int, high: int) -> CelRule:
    smallest, largest = quantities.format_bytes(low), quantities.format_bytes(high)
    return CelRule(
        at=at,
        rule=f"quantity(string(self)).compareTo(quantity('{smallest}')) >= 0 "
        f"&& quantity(string(self)).compareTo(quantity('{largest}')) <= 0",
        message=f"write a size of {smallest} to {largest}",
        expression=f"string(self) + ' is out of range: write a size of {smallest} to {largest}'",
    )


NAME = CelRule(
    at="",
    rule=f"self.metadata.name.matches('^({names.JOB_NAME.pattern})$')",
    message=f"the name must have at most {names.MAX_JOB_NAME} characters, all of them lower-case letters, digits or -, "
    "begin with a letter and end with a letter or digit: the names of the workers' pods begin with it",
    field="metadata.name",
)

SIZES = (
    _size("spec.stream.maxBytes", f.MIN_BYTES, f.MAX_BYTES),
    _size("spec.stream.maxFrameBytes", f.MIN_BYTES, f.MAX_FRAME_BYTES),
    _size("spec.weights.maxBytes", f.MIN_BYTES, f.MAX_BYTES),
    _size(f"{_GROUP}.sharedMemory", f.MIN_SHARED_MEMORY, f.MAX_BYTES),
    CelRule(
        at="spec.stream.rateLimit.samplesPerInsert",
        rule="quantity(string(self)).compareTo(quantity('0')) > 0 "
        f"&& quantity(string(self)).compareTo(quantity('{f.MAX_VERSIONS}')) <= 0",
        message=f"write a number over 0, at most {f.MAX_VERSIONS}",
    ),
    *(
        CelRule(
            at=f"{_GROUP}.template.spec.containers[].resources.{kind}",
            rule="self.all(k, quantity(string(self[k])).compareTo(quantity('0')) >= 0)",
            message="the amount of a resource cannot be negative: write 0 or more",
        )
        for kind in ("requests", "limits")
    ),
)

PRODUCTION = (
    CelRule(
        at="spec",
        rule="self.env.envsPerWorker % self.collector.collectorsPerWorker == 0",
        message="envsPerWorker must be a multiple of collectorsPerWorker",
        expression="'%d is not a multiple of collectorsPerWorker (%d)'"
        ".format([self.env.envsPerWorker, self.collector.collectorsPerWorker])",
        field="env.envsPerWorker",
    ),
    CelRule(
        at="spec",
        rule="""self.collector.mode == 'MultiAsync'
            ? self.env.envsPerWorker % self.collector.collectorsPerWorker != 0
              || self.collector.framesPerBatch % (self.env.envsPerWorker / self.collector.collectorsPerWorker) == 0
            : self.collector.framesPerBatch % self.env.envsPerWorker == 0""",
        message="framesPerBatch must be a multiple of the environments that make a batch: envsPerWorker, "
        "and with mode MultiAsync envsPerWorker / collectorsPerWorker",
        expression="""self.collector.mode == 'MultiAsync'
            ? '%d is not a multiple of envsPerWorker / collectorsPerWorker (%d)'.format([self.collector.framesPerBatch,
              self.env.envsPerWorker / self.collector.collectorsPerWorker])
            : '%d is not a multiple of envsPerWorker (%d)'.format([self.collector.framesPerBatch,
              self.env.envsPerWorker])""",
        field="collector.framesPerBatch",
    ),
    CelRule(
        at="spec.env",
        rule="!has(self.processes) || self.processes <= self.envsPerWorker",
        message="processes must not be more than envsPerWorker: some would have no environment",
        expression="'%d is more than envsPerWorker (%d): some would have no environment'"
        ".format([self.processes, self.envsPerWorker])",
        field="processes",
    ),
    CelRule(
        at="spec.env",
        rule="!has(self.tasks) || self.tasks.map(t, t.count).sum() == self.envsPerWorker",
        message="the counts of the tasks must sum to envsPerWorker",
        expression="'the counts sum to %d, not to envsPerWorker (%d)'"
        ".format([self.tasks.map(t, t.count).sum(), self.envsPerWorker])",
        field="tasks",
    ),
    CelRule(
        at=_TASKS,
        rule="self.all(a, self.exists_one(b, b.name == a.name))",
        message="each task needs a name of its own",
        reason=DUPLICATE,
    ),
    CelRule(
        at="spec.collector",
        rule="!(self.mode in ['Sync', 'Async']) || self.collectorsPerWorker == 1",
        message="modes Sync and Async have one collector: use 1, or mode MultiSync or MultiAsync",
        field="collectorsPerWorker",
    ),
    CelRule(
        at="spec.collector",
        rule="!has(self.preemptionThresholdPercent) || self.mode == 'MultiSync' || self.coordination == 'Barrier'",
        message="has no effect, nobody waits for others: remove it, or use mode MultiSync or coordination Barrier",
        field="preemptionThresholdPercent",
        reason=FORBIDDEN,
    ),
    CelRule(
        at="spec.collector",
        rule="!has(self.totalFrames) || self.initRandomFrames <= self.totalFrames",
        message="initRandomFrames must not be more than totalFrames",
        field="initRandomFrames",
    ),
    CelRule(
        at="spec",
        rule="self.determinism != 'Strict' || self.collector.mode in ['Sync', 'MultiSync']",
        message="Strict needs mode Sync or MultiSync: the batches of other modes depend on timing",
        field="determinism",
    ),
    CelRule(
        at="spec",
        rule="self.determinism != 'Strict' || !has(self.collector.preemptionThresholdPercent)",
        message="is not possible with determinism Strict, what is cut depends on timing: remove it, or use BestEffort",
        field="collector.preemptionThresholdPercent",
        reason=FORBIDDEN,
    ),
    CelRule(
        at="spec",
        rule="""self.determinism != 'Strict' || self.weights.startPolicy != 'WaitForWeights'
            || has(self.weights.maxStaleness)""",
        message="would wait for ever: with determinism Strict and no maxStaleness no weights can be published. "
        "Use Immediate, or set maxStaleness",
        field="weights.startPolicy",
    ),
)

GROUPS = (
    CelRule(
        at="spec.workerGroups",
        rule="self.filter(g, g.elastic).size() <= 1",
        message="at most one group can be elastic, spec.replicas is one number: give the others replicas instead",
    ),
    CelRule(
        at="spec",
        rule="self.replicas == 1 || self.workerGroups.exists(g, g.elastic)",
        message="has no effect, no worker group is elastic: remove it, or set elastic: true on one group",
        field="replicas",
        reason=FORBIDDEN,
    ),
    CelRule(
        at=_GROUP,
        rule="!self.elastic || !has(self.replicas)",
        message="has no effect, the number of workers of an elastic group is spec.replicas: write it there",
        field="replicas",
        reason=FORBIDDEN,
    ),
    *(
        CelRule(
            at=_GROUP,
            rule=f"!has(self.maxReplicas) || self.{name} <= self.maxReplicas",
            message=f"{name} must not be more than maxReplicas",
            expression=f"'%d is more than maxReplicas (%d)'.format([self.{name}, self.maxReplicas])",
            field=name,
        )
        for name in ("minReplicas", "minAvailable")
    ),
    CelRule(
        at=_GROUP,
        rule=f"""self.device != 'Cuda' || ({_HAS_CONTAINERS} && {_CONTAINERS}.exists(c, ({_WORKER}) && {_LIMITS}
            && c.resources.limits.exists(k, k.matches('^({GPU_RESOURCE})$')
            && quantity(string(c.resources.limits[k])).compareTo(quantity('0')) > 0)))""",
        message="Cuda needs a GPU limit of the worker's container, such as resources: {limits: {nvidia.com/gpu: 1}}: "
        "add it, or use Auto, which follows the template",
        field="device",
    ),
    CelRule(
        at=f"{_GROUP}.template.spec",
        rule="!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        message="a worker that ended is replaced by a new pod: remove restartPolicy, or use Never",
        field="restartPolicy",
    ),
    CelRule(
        at=f"{_GROUP}.template.spec.containers[].env[]",
        rule=f"!self.name.startsWith('{RESERVED_ENV}')",
        message=f"variables that begin with {RESERVED_ENV} are set by the platform: use another name",
        field="name",
        reason=FORBIDDEN,
    ),
    CelRule(
        at=_GROUP,
        rule=f"""!has(self.sharedMemory) || !({_HAS_CONTAINERS}) || {_CONTAINERS}.all(c, !({_WORKER})
            || !({_LIMITS}) || !('memory' in c.resources.limits)
            || quantity(string(self.sharedMemory)).compareTo(quantity(string(c.resources.limits['memory']))) <= 0)""",
        message="sharedMemory must not be more than the worker's memory limit, which it counts towards",
        expression=f"""('sharedMemory (%s) is more than the memory limit of the worker (%s), which it counts towards: '
            + 'raise the limit or use less').format([self.sharedMemory, {_CONTAINERS}.filter(c, {_LIMITS}
            && 'memory' in c.resources.limits && ({_WORKER}))[0].resources.limits['memory']])""",
        field="sharedMemory",
    ),
)

STREAM = (
    CelRule(
        at="spec.redis",
        rule="has(self.host) || (self.port == 6379 && !has(self.tls) && !has(self.authSecretRef))",
        message="port, tls and authSecretRef have no effect without host, the operator's default server has its own: "
        "write host, or remove them",
        field="host",
        reason=REQUIRED,
    ),
    CelRule(
        at="spec.stream.groups",
        rule="self.all(a, self.exists_one(b, b == a))",
        message="each consumer group can be there once",
        reason=DUPLICATE,
    ),
    CelRule(
        at="spec",
        rule="!has(self.stream.maxUnackedFrames) || self.stream.maxUnackedFrames >= self.collector.framesPerBatch",
        message="maxUnackedFrames must be at least framesPerBatch: otherwise not one batch would fit",
        field="stream.maxUnackedFrames",
    ),
    CelRule(
        at="spec",
        rule="!has(self.weights.maxStaleness) || self.weights.maxStaleness != 0 "
        "|| self.collector.mode in ['Sync', 'MultiSync']",
        message="0 needs mode Sync or MultiSync, other modes collect while weights change: use at least 1",
        field="weights.maxStaleness",
    ),
    CelRule(
        at="spec.weights",
        rule="self.onStale != 'Drop' || has(self.maxStaleness)",
        message="Drop has no effect without maxStaleness: set maxStaleness, or use Pace",
        field="onStale",
    ),
)

RATE_LIMIT = (
    CelRule(
        at="spec.stream.rateLimit",
        rule="self.type != 'MinSize' || has(self.minFrames)",
        message="type MinSize needs minFrames",
        field="minFrames",
        reason=REQUIRED,
    ),
    *(
        CelRule(
            at="spec.stream.rateLimit",
            rule=f"self.type != 'SampleToInsert' || has(self.{name})",
            message=f"type SampleToInsert needs {name}",
            field=name,
            reason=REQUIRED,
        )
        for name in ("samplesPerInsert", "errorBufferFrames")
    ),
    *(
        CelRule(
            at="spec.stream.rateLimit",
            rule=f"!has(self.{name}) || self.type in [{', '.join(repr(t) for t in types)}]",
            message=f"has no effect with this type: remove it, or use type {' or '.join(types)}",
            field=name,
            reason=FORBIDDEN,
        )
        for name, types in {
            "samplesPerInsert": ("SampleToInsert",),
            "errorBufferFrames": ("SampleToInsert",),
            "minFrames": ("MinSize", "SampleToInsert"),
        }.items()
    ),
    CelRule(
        at="spec",
        # Floating point: the tolerance keeps 1.1 × 10 = 11 right.
        rule="""!has(self.stream.rateLimit) || self.stream.rateLimit.type != 'SampleToInsert'
            || !has(self.stream.rateLimit.samplesPerInsert) || !has(self.stream.rateLimit.errorBufferFrames)
            || (self.stream.rateLimit.errorBufferFrames >= self.collector.framesPerBatch
                && double(self.stream.rateLimit.errorBufferFrames) * 1.000000000001
                   >= quantity(string(self.stream.rateLimit.samplesPerInsert)).asApproximateFloat()
                      * double(self.collector.framesPerBatch))""",
        message="blocks both sides: errorBufferFrames must be at least max(1, samplesPerInsert) × framesPerBatch",
        field="stream.rateLimit.errorBufferFrames",
    ),
    CelRule(
        at="spec.stream",
        rule="""self.onFull != 'Block' || !has(self.rateLimit) || self.rateLimit.type == 'Queue'
            || !has(self.rateLimit.minFrames) || !has(self.maxUnackedFrames)
            || self.rateLimit.minFrames <= self.maxUnackedFrames""",
        message="minFrames must not be more than maxUnackedFrames: readers would wait for frames that writers may not write",
        field="rateLimit.minFrames",
    ),
)

FAILURES = (
    CelRule(
        at=_RULES,
        rule="self.all(a, self.exists_one(b, b.name == a.name))",
        message="each rule needs a name of its own",
        reason=DUPLICATE,
    ),
    CelRule(
        at="spec",
        rule="""!has(self.failurePolicy.rules) || self.failurePolicy.rules.all(r, !has(r.workerGroups)
            || r.workerGroups.all(n, self.workerGroups.exists(g, g.name == n)))""",
        message="a rule names a worker group that is not there",
        expression="""'a rule names a worker group that is not there, there are only %s'
            .format([self.workerGroups.map(g, g.name)])""",
        field="failurePolicy.rules",
    ),
)

STATE_RULES: tuple[CelRule, ...] = (NAME, *SIZES, *PRODUCTION, *GROUPS, *STREAM, *RATE_LIMIT, *FAILURES)
"""Rules that look at the object alone, not at what it was before."""
