"""Random lives of a job: edits, pods that start, fail, vanish and are evicted, frames, time.

Whatever happened, the loop comes to rest, and then the right workers run. What must never happen is checked in each
turn by the model.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from operator_builders import elastic, fixed
from operator_model import Model

from rollout_contract.spec import groups_of
from rollout_contract.status import is_finished
from rollout_operator.scale import desired_of

TEMPLATES = [None, "1Gi", "2Gi"]
CODES = [0, 1, 2, 64, 70, 75, 76, 137, 143]


class JobLife(RuleBasedStateMachine):
    """One job."""

    @initialize(
        limit=st.integers(0, 8),
        per_worker=st.none() | st.integers(0, 2),
        backoff=st.sampled_from([0, 10]),
        keep=st.integers(0, 2),
        total=st.none() | st.just(5_000),
        min_available=st.integers(0, 2),
    )
    def begin(self, limit, per_worker, backoff, keep, total, min_available):
        self.min_available = min_available
        self.template = None
        self.model = Model(
            replicas=2,
            collector={"framesPerBatch": 100, "totalFrames": total},
            workerGroups=self.groups(1),
            failurePolicy={
                "backoffLimit": limit,
                "backoffLimitPerWorker": per_worker,
                "backoffSeconds": backoff,
            },
            podRetention={"failed": keep},
            startupDeadlineSeconds=600,
            stalledDeadlineSeconds=900,
        )
        self.fixed = 1

    def groups(self, replicas):
        memory = {"sharedMemory": self.template} if self.template else {}
        return [
            elastic("cpu", maxReplicas=5, minAvailable=self.min_available, **memory),
            fixed("gpu", replicas),
        ]

    def some_pod(self, choice, pods):
        return pods[choice % len(pods)].name

    @rule(replicas=st.integers(0, 7))
    def scale(self, replicas):
        self.model.edit(replicas=replicas)

    @rule(replicas=st.integers(0, 3))
    def scale_the_fixed_group(self, replicas):
        self.fixed = replicas
        self.model.edit(workerGroups=self.groups(replicas))

    @rule(template=st.sampled_from(TEMPLATES))
    def edit_the_template(self, template):
        self.template = template
        self.model.edit(workerGroups=self.groups(self.fixed))

    @rule(suspend=st.booleans())
    def suspend(self, suspend):
        self.model.edit(suspend=suspend)

    @rule(kind=st.sampled_from(["RollingReplace", "OnSuspend"]), unavailable=st.integers(1, 3))
    def change_the_strategy(self, kind, unavailable):
        self.model.edit(updateStrategy={"type": kind, "maxUnavailable": unavailable})

    @precondition(lambda self: self.model.living())
    @rule(choice=st.integers(0, 20), code=st.sampled_from(CODES))
    def a_worker_ends(self, choice, code):
        self.model.end(self.some_pod(choice, self.model.living()), code)

    @precondition(lambda self: self.model.pods)
    @rule(choice=st.integers(0, 20))
    def a_pod_vanishes(self, choice):
        pods = sorted(self.model.pods.values(), key=lambda p: p.name)
        self.model.vanish(self.some_pod(choice, pods))

    @precondition(lambda self: self.model.living())
    @rule(choice=st.integers(0, 20))
    def a_pod_is_evicted(self, choice):
        self.model.evict(self.some_pod(choice, self.model.living()))

    @rule()
    def the_kubelet_works(self):
        self.model.kubelet()

    @precondition(lambda self: self.model.facts.is_open and self.model.facts.end is None)
    @rule(frames=st.integers(1, 2_000))
    def frames_come(self, frames):
        if any(pod.ready for pod in self.model.living()):
            self.model.append(frames)

    @rule(seconds=st.sampled_from([0.5, 5, 30, 130, 400]))
    def time_passes(self, seconds):
        self.model.now += seconds

    @rule(turns=st.integers(1, 3))
    def reconcile(self, turns):
        for _ in range(turns):
            self.model.reconcile()

    @rule(steps=st.integers(0, 6))
    def the_operator_dies_half_way(self, steps):
        self.model.reconcile(dies_after=steps)

    @rule()
    def come_to_rest_without_anything_happening(self):
        self.model.settle(with_kubelet=False)

    def teardown(self):
        if not hasattr(self, "model"):
            return
        model = self.model
        model.settle(with_kubelet=True)
        for _ in range(12):  # back-offs run out, and frames keep coming
            model.now += 310
            if model.facts.is_open and model.facts.end is None and any(p.ready for p in model.living()):
                model.append(1)
            model.settle(with_kubelet=True)
        job = model.job
        alive = [pod for pod in model.living() if pod.alive]
        if is_finished(job.status) or job.spec.suspend:
            assert alive == []
            return
        plan = model.reconcile()
        for group in groups_of(job.spec):
            decided = plan.groups[group.name]
            own = [pod for pod in alive if pod.worker.group == group.name]
            assert len(decided.wanted) == desired_of(group, job.spec)
            assert {pod.slot for pod in own} == decided.wanted - decided.given_up
            assert all(pod.ready for pod in own)
            if job.spec.update_strategy.type == "RollingReplace":
                assert all(pod.template_hash == decided.template_hash for pod in own)
        failures = sum(group.failures for group in model.status.worker_groups)
        assert failures == model.failures


TestJobLife = JobLife.TestCase
TestJobLife.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # shrinking takes minutes; `print_blob` repeats a failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
