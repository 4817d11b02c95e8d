"""The failure policy: what the end of a worker means, what it counts, when its slot may try again. Pure.

Order of judgement: disruptions are free; exit codes 64 and 70 fail the job at once; a fenced or finished worker is no
failure; then the user's rules, the first that matches; then an orderly end on SIGTERM (143) is free; everything else is
a counted failure. What was judged is written on the pod and stands, whatever is edited later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollout_contract.exits import ExitCode
from rollout_contract.spec import (
    ExitCodeOperator,
    FailureAction,
    FailurePolicy,
    FailureRule,
    RolloutJobSpec,
)
from rollout_contract.status import Reason, WorkerGroupStatus
from rollout_operator.decisions import Count, CountKind, Ending, EndingKind
from rollout_operator.observed import SlotView
from rollout_operator.pods import (
    ANNOTATION_COUNTED,
    ANNOTATION_SLOT_FAILURES,
    ANNOTATION_STREAK,
    PodView,
)

MAX_BACKOFF_S = 300.0
HEALTHY_AFTER_S = 600.0
"""A worker that ran for so long starts its slot's back-off anew."""

DISRUPTION_REASONS = frozenset(
    {"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity"}
    | {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage"}
)
"""Reasons of a failed pod by which the cluster, not the worker, ended it."""

FATAL_CODES: Mapping[int, Reason] = {
    ExitCode.CONFIGURATION: Reason.CONFIGURATION_ERROR,
    ExitCode.STATE_LOST: Reason.STATE_LOST,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the end of a pod means. `count` None: nothing is counted. `rule`: the user's rule that said so."""

    count: CountKind | None
    is_done: bool = False
    """The worker has delivered all that was asked of it: its slot needs no other."""
    rule: str = ""


_KINDS = frozenset(CountKind)
DONE = Verdict(None, is_done=True)
FREE = Verdict(None)


def is_disrupted(pod: PodView) -> bool:
    """Whether the cluster took the pod away: eviction, preemption, node loss."""
    target = pod.condition("DisruptionTarget")
    return (target is not None and target.status == "True") or pod.pod_reason in DISRUPTION_REASONS


def judge(pod: PodView, policy: FailurePolicy, *, ends_well: bool) -> Verdict:
    """What the end of a pod means. `ends_well`: exit code 0 is right now (nothing is left, or its share is done)."""
    counted = counted_as(pod)
    if counted is not None:
        return Verdict(counted[0], rule=_matching_rule_name(pod, policy))
    if is_disrupted(pod):
        return Verdict(CountKind.DISRUPTION)
    if pod.deletion_requested is not None:
        return FREE
    if pod.exit_code in FATAL_CODES:
        return Verdict(CountKind.FATAL)
    if pod.exit_code == ExitCode.FENCED:
        return FREE
    if pod.exit_code == ExitCode.FINISHED:
        return DONE if ends_well else Verdict(CountKind.FAILURE)
    for rule in policy.rules or ():
        if matches(rule, pod):
            return Verdict(_COUNTED_BY_ACTION[rule.action], rule=rule.name)
    return Verdict(CountKind.DISRUPTION if pod.exit_code == ExitCode.DRAINED else CountKind.FAILURE)


_COUNTED_BY_ACTION = {
    FailureAction.FAIL_JOB: CountKind.FATAL,
    FailureAction.REPLACE_WORKER: CountKind.FAILURE,
    FailureAction.IGNORE: CountKind.DISRUPTION,
}


def matches(rule: FailureRule, pod: PodView) -> bool:
    """Whether a pod that has ended fulfils everything that the rule names."""
    if rule.worker_groups is not None and pod.worker.group not in rule.worker_groups:
        return False
    codes = rule.on_exit_codes
    if codes is not None:
        is_in = pod.exit_code in codes.values
        if not pod.exit_code or is_in != (codes.operator is ExitCodeOperator.IN):
            return False
    if rule.on_reasons is not None and not {pod.reason, pod.pod_reason} & set(rule.on_reasons):
        return False
    patterns = rule.on_pod_conditions
    return patterns is None or any(
        (found := pod.condition(pattern.type)) is not None and found.status == pattern.status.value
        for pattern in patterns
    )


def _matching_rule_name(pod: PodView, policy: FailurePolicy) -> str:
    return next((rule.name for rule in policy.rules or () if matches(rule, pod)), "")


def counted_as(pod: PodView) -> tuple[CountKind, int] | None:
    """What a pod was counted as before, with its number; None: not yet."""
    if ANNOTATION_COUNTED not in pod.annotations:
        return None
    kind, _, number = pod.annotations[ANNOTATION_COUNTED].partition(":")
    if kind not in _KINDS or not number.isdecimal():
        return None
    return CountKind(kind), int(number)


@dataclass(frozen=True, slots=True)
class Tally:
    """Failures and disruptions of one group so far."""

    failures: int = 0
    disruptions: int = 0

    def including(self, kind: CountKind, number: int) -> Tally:
        """With the number-th of a kind known to have happened."""
        if kind is CountKind.DISRUPTION:
            return Tally(self.failures, max(self.disruptions, number))
        return Tally(max(self.failures, number), self.disruptions)

    def next_number(self, kind: CountKind) -> int:
        """The number of the next one of a kind."""
        return 1 + (self.disruptions if kind is CountKind.DISRUPTION else self.failures)


def tallies_of(groups: Iterable[WorkerGroupStatus], pods: Iterable[PodView]) -> dict[str, Tally]:
    """Counters by group: the status, or what stands on pods if the status was not written after counting them."""
    tallies = {group.name: Tally(group.failures, group.disruptions) for group in groups}
    for pod in pods:
        counted = counted_as(pod)
        if counted is not None:
            group = pod.worker.group
            tallies[group] = tallies.get(group, Tally()).including(*counted)
    return tallies


def counts_of(
    pods: Iterable[PodView], verdicts: Mapping[str, Verdict], tallies: Mapping[str, Tally]
) -> tuple[Count, ...]:
    """The pods (verdicts by UID) that are to be counted now, numbered on from the tallies, in order of their end."""
    running = dict(tallies)
    counts = []
    for pod in sorted(pods, key=lambda p: (p.finished or 0.0, p.name)):
        kind = verdicts[pod.uid].count if pod.uid in verdicts else None
        if kind is None or counted_as(pod) is not None:
            continue
        tally = running.get(pod.worker.group, Tally())
        count = Count(pod, kind, tally.next_number(kind))
        running[pod.worker.group] = tally.including(kind, count.number)
        counts.append(count)
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class SlotFate:
    """How a slot without a running worker goes on."""

    streak: int = 0
    slot_failures: int = 0
    due: float = 0.0
    """When the next attempt may start."""
    is_given_up: bool = False
    is_done: bool = False


def fate_of(
    view: SlotView, verdicts: Mapping[str, Verdict], policy: FailurePolicy, *, template_hash: str
) -> SlotFate:
    """What follows on the newest end of a slot. An edited template gives the slot a fresh start."""
    pod = view.last_ended
    if pod is None or pod.template_hash != template_hash:
        return SlotFate()
    verdict = verdicts[pod.uid]
    if verdict.is_done:
        return SlotFate(is_done=True)
    before = _number(pod, ANNOTATION_SLOT_FAILURES)
    failures = before + (verdict.count in {CountKind.FAILURE, CountKind.FATAL})
    if pod.deletion_requested is not None and verdict.count is None:
        return SlotFate(streak=_number(pod, ANNOTATION_STREAK), slot_failures=failures)
    streak = 1 + (0 if _was_healthy(pod) else _number(pod, ANNOTATION_STREAK))
    ended = view.now if pod.finished is None else min(pod.finished, view.now)  # a node's clock may be ahead
    limit = policy.backoff_limit_per_worker
    return SlotFate(
        streak=streak,
        slot_failures=failures,
        due=ended + delay_s(verdict, streak, policy.backoff_seconds),
        is_given_up=limit is not None and failures > limit,
    )


def delay_s(verdict: Verdict, streak: int, backoff_s: float) -> float:
    """How long a slot waits after its `streak`-th end in a row: back-off × 2ⁿ, at most MAX_BACKOFF_S.

    What is free is replaced at once the first time; a second one in a row waits, lest the cluster and we play ping-pong.
    """
    doublings = streak - 1 if verdict.count in {CountKind.FAILURE, CountKind.FATAL} else streak - 2
    if doublings < 0:
        return 0.0
    return min(MAX_BACKOFF_S, backoff_s * 2.0 ** min(doublings, 32))


def ending_of(
    spec: RolloutJobSpec,
    pods: Iterable[PodView],
    *,
    verdicts: Mapping[str, Verdict],
    tallies: Mapping[str, Tally],
) -> Ending | None:
    """The job's failure, if what happened to its workers means that (tallies include what is counted now)."""
    ended = sorted((p for p in pods if p.uid in verdicts), key=lambda p: (p.finished or 0.0, p.name))
    fatal = [pod for pod in ended if verdicts[pod.uid].count is CountKind.FATAL]
    if fatal:
        return _fatal_ending(fatal[0], verdicts[fatal[0].uid])
    failures = sum(tally.failures for tally in tallies.values())
    limit = spec.failure_policy.backoff_limit
    if failures <= limit:
        return None
    last = [pod for pod in ended if verdicts[pod.uid].count is CountKind.FAILURE][-1:]
    detail = "".join(f"; the last: {describe(pod)}" for pod in last)
    message = f"{failures} worker failures, backoffLimit is {limit}{detail}"
    return Ending(EndingKind.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message)


def _fatal_ending(pod: PodView, verdict: Verdict) -> Ending:
    reason = FATAL_CODES.get(pod.exit_code or 0)
    if reason is not None:
        return Ending(EndingKind.FAILED, reason, describe(pod))
    return Ending(EndingKind.FAILED, Reason.FAIL_JOB_RULE, f"rule {verdict.rule!r}: {describe(pod)}")


def describe(pod: PodView) -> str:
    """One line and the worker's own words: who, how it ended, why."""
    worker = pod.worker
    how = f"exit code {pod.exit_code}" if pod.exit_code is not None else "never ran"
    reason = pod.pod_reason or pod.reason
    if reason == "OOMKilled" and pod.memory_limit:
        reason += f", its memory limit is {pod.memory_limit}"
    label = f" ({reason})" if reason and reason not in {"Error", "Completed"} else ""
    words = f": {pod.message}" if pod.message else ""
    if pod.exit_code == ExitCode.FINISHED and not words:
        words = ": it ended by itself, though the job is not complete"
    return f"worker {worker.slot} attempt {worker.attempt}: {how}{label}{words}"


def _was_healthy(pod: PodView) -> bool:
    return (
        pod.started is not None and pod.finished is not None and pod.finished - pod.started >= HEALTHY_AFTER_S
    )


def _number(pod: PodView, annotation: str) -> int:
    text = pod.annotations.get(annotation, "")
    return int(text) if text.isdecimal() else 0
