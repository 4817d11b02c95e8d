"""What to do for a job: a pure function of its document, of what was observed, and of the time.

Called once per reconcile, carried out by `apply`. Running it again on what it led to gives an empty plan. The
questions, in order: ours? over? ended just now? suspended? and then, group by group, which slots, which attempts. Each
question's answer is in the module named after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rollout_contract import names
from rollout_contract.messages import EndKind, EndMarker
from rollout_contract.names import Slot, WorkerId
from rollout_contract.spec import Determinism, RolloutJob, WorkerGroup, groups_of
from rollout_contract.status import Reason, is_finished
from rollout_contract.unbuilt import not_built
from rollout_operator import deadlines, failure, finish, rollout, scale
from rollout_operator.decisions import (
    Count,
    Create,
    Delete,
    Ending,
    EndingKind,
    GroupPlan,
    Motion,
    Plan,
    Why,
)
from rollout_operator.failure import SlotFate, Tally, Verdict
from rollout_operator.observed import LOST_AFTER_S, Observed, SlotView, StreamFacts
from rollout_operator.pods import PodView

MAX_CREATES = 250
"""Pods created by one reconcile; the rest come with the next, so that one large job does not starve others."""


def make_plan(job: RolloutJob, observed: Observed, now: float) -> Plan:
    """What one reconcile does. `now` in seconds since 1970."""
    if is_hands_off(job):
        return Plan(hands_off=True)
    if is_finished(job.status):
        return finish.plan_finished(job, observed, now)
    look = _look(job, observed, now)
    ending = look.ending or (None if job.spec.suspend else look.timing.ending)
    if ending is not None:
        # The latch is written first; the next reconcile, at once, does what is left to do.
        return Plan(
            count=look.counts,
            ending=ending,
            groups=look.groups,
            motion=look.timing.motion,
            requeue_after_s=0.0,
        )
    if job.spec.suspend:
        return _plan_suspended(look)
    return _plan_running(look)


def is_hands_off(job: RolloutJob) -> bool:
    """Whether the job is not ours to touch: managed by somebody else, or being deleted."""
    manager = job.spec.managed_by
    return (manager is not None and manager != names.OPERATOR_NAME) or bool(job.metadata.deletion_timestamp)


def template_hash_of(group: WorkerGroup) -> str:
    """Ten hexadecimal digits that change when the group's pods would look different because of an edit.

    Made of what the user wrote: neither the operator's defaults nor what reaches workers while they run are part of it.
    """
    document = group.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"template", "device", "shared_memory"}
    )
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class _Look:
    """What is derived once and used by every branch."""

    job: RolloutJob
    observed: Observed
    now: float
    views: Mapping[Slot, SlotView]
    verdicts: Mapping[str, Verdict]
    recorded: Mapping[str, Tally]
    """Counters as the status has them."""
    counts: tuple[Count, ...]
    groups: Mapping[str, GroupPlan]
    fates: Mapping[Slot, SlotFate]
    timing: deadlines.Timing
    ending: Ending | None


def _look(job: RolloutJob, observed: Observed, now: float) -> _Look:
    policy, facts = job.spec.failure_policy, observed.facts
    views = observed.slots(now)
    is_strict = job.spec.determinism is Determinism.STRICT
    ends_well = facts is None or facts.is_complete or is_strict
    verdicts = {
        pod.uid: failure.judge(pod, policy, ends_well=ends_well)
        for pod in observed.pods
        if pod.ended or failure.is_disrupted(pod)
    }
    tallies = failure.tallies_of(job.status.worker_groups, observed.pods)
    counts = failure.counts_of(observed.pods, verdicts, tallies)
    for count in counts:
        group = count.pod.worker.group
        tallies[group] = tallies.get(group, Tally()).including(count.kind, count.number)
    fates: dict[Slot, SlotFate] = {}
    groups = {
        group.name: _plan_group(group, job, views, verdicts, fates, observed, now)
        for group in groups_of(job.spec)
    }
    ending = (
        finish.completion_of(facts)
        or finish.state_lost(job, facts)
        or failure.ending_of(job.spec, observed.pods, verdicts=verdicts, tallies=tallies)
        or _ending_by_given_up(job, groups, views)
    )
    timing = deadlines.timing_of(job, observed, now, groups=groups, views=views)
    recorded = failure.tallies_of(job.status.worker_groups, ())
    return _Look(job, observed, now, views, verdicts, recorded, counts, groups, fates, timing, ending)


def _plan_group(
    group: WorkerGroup,
    job: RolloutJob,
    views: Mapping[Slot, SlotView],
    verdicts: Mapping[str, Verdict],
    fates: dict[Slot, SlotFate],
    observed: Observed,
    now: float,
) -> GroupPlan:
    """Decides on a group, and notes in `fates` how its slots without a worker go on."""
    desired, template_hash = scale.desired_of(group, job.spec), template_hash_of(group)
    wanted = scale.wanted_slots(group.name, desired, views=views, facts=observed.facts)
    for slot in wanted:
        if slot in views and views[slot].live is None:
            fates[slot] = failure.fate_of(
                views[slot], verdicts, job.spec.failure_policy, template_hash=template_hash
            )
    own = {slot: fate for slot, fate in fates.items() if slot.group == group.name}
    return GroupPlan(
        desired=desired,
        clamped_from=scale.clamped_from(group, job.spec),
        template_hash=template_hash,
        wanted=wanted,
        given_up=frozenset(slot for slot, fate in own.items() if fate.is_given_up)
        | _used_up(wanted, views, observed.facts),
        done=frozenset(slot for slot, fate in own.items() if fate.is_done),
        backing_off={slot: f.due for slot, f in own.items() if f.due > now and not f.is_given_up},
    )


def _used_up(
    wanted: Iterable[Slot], views: Mapping[Slot, SlotView], facts: StreamFacts | None
) -> frozenset[Slot]:
    """Slots for whose next attempt there is no number left."""
    if facts is None:
        return frozenset()
    return frozenset(
        slot
        for slot in wanted
        if (slot not in views or views[slot].live is None)
        and scale.next_attempt(slot, views.get(slot), facts) > names.MAX_ATTEMPT
    )


def _ending_by_given_up(
    job: RolloutJob, groups: Mapping[str, GroupPlan], views: Mapping[Slot, SlotView]
) -> Ending | None:
    """Workers over their own limit stay down, as long as their group and the job can do without them."""
    limit = job.spec.failure_policy.backoff_limit_per_worker
    given_up = sorted(slot for group in groups.values() for slot in group.given_up)
    if not given_up:
        return None
    last = next((views[s].last_ended for s in reversed(given_up) if s in views), None)
    words = failure.describe(last) if last is not None else str(given_up[-1])
    for group in groups_of(job.spec):
        plan = groups[group.name]
        left, needed = plan.desired - len(plan.given_up), min(group.min_available, plan.desired)
        if left < needed:
            message = (
                f"group {group.name}: {len(plan.given_up)} of {plan.desired} workers failed more than "
                f"backoffLimitPerWorker ({limit}) times, minAvailable is {group.min_available}; {words}"
            )
            return Ending(EndingKind.FAILED, Reason.WORKER_LIMIT_EXCEEDED, message)
    if all(plan.wanted <= plan.given_up | plan.done for plan in groups.values()):
        message = f"every worker that is left failed more than backoffLimitPerWorker ({limit}) times; {words}"
        return Ending(EndingKind.FAILED, Reason.WORKER_LIMIT_EXCEEDED, message)
    return None


def _plan_suspended(look: _Look) -> Plan:
    delete = tuple(
        Delete(pod, Why.SUSPENDED)
        for pod in look.observed.pods
        if pod.deletion_requested is None
        and (not pod.ended or finish.is_recorded(pod, look.verdicts, look.recorded))
    )
    facts = look.observed.facts
    is_to_tell = not look.observed.pods and facts is not None and facts.is_open and facts.end is None
    marker = EndMarker(EndKind.SUSPENDED, Reason.SUSPENDED.value, "the job is suspended")
    return Plan(
        check=_checks(look, ()),
        delete=delete,
        count=look.counts,
        # So that learners find a job that is suspended from the start, and can publish to it.
        open_stream=facts is not None and not facts.is_open and not not_built(look.job.spec),
        tune_stream=facts is not None and facts.is_open and not facts.in_tune,
        marker=marker if is_to_tell else None,
        groups=look.groups,
        motion=Motion.UNKNOWN,
        requeue_after_s=_requeue(look),
    )


def _plan_running(look: _Look) -> Plan:
    deletes, creates = _deletes(look), _creates(look)[: MAX_CREATES + 1]
    now = creates[:MAX_CREATES]
    facts = look.observed.facts
    is_open = facts is not None and facts.is_open
    return Plan(
        check=_checks(look, (*now, *_successors(look, deletes))),
        is_fresh=not look.observed.pods,
        announce=_announced(look, now),
        create=now,
        delete=deletes,
        count=look.counts,
        release=_releases(look),
        open_stream=facts is not None and not is_open and not not_built(look.job.spec),
        tune_stream=facts is not None and is_open and not facts.in_tune,
        reopen_stream=facts is not None and facts.is_paused_by_marker,
        groups=look.groups,
        motion=look.timing.motion,
        requeue_after_s=0.0 if len(creates) > MAX_CREATES else _requeue(look),
    )


def _deletes(look: _Look) -> tuple[Delete, ...]:
    wanted = {slot for group in look.groups.values() for slot in group.wanted}
    found: list[Delete] = []
    for slot, view in look.views.items():
        found += (Delete(pod, Why.SUPERSEDED) for pod in view.surplus)
        if view.live is not None and slot not in wanted:
            found.append(Delete(view.live, Why.SCALED_DOWN))
    for group in look.groups.values():
        found += (Delete(pod, Why.OUTDATED) for pod in _outdated(look, group))
    found += finish.cleared(
        look.views,
        wanted=wanted,
        verdicts=look.verdicts,
        tallies=look.recorded,
        keep=look.job.spec.pod_retention.failed,
    )
    return tuple(found)


def _successors(look: _Look, deletes: Iterable[Delete]) -> Iterator[Create]:
    """The workers that would follow on those that give way to an edited template."""
    facts = look.observed.facts
    for delete in deletes:
        if delete.why is Why.OUTDATED and facts is not None:
            slot = delete.pod.slot
            attempt = scale.next_attempt(slot, look.views.get(slot), facts)
            yield Create(WorkerId(slot.group, slot.index, attempt))


def _checks(look: _Look, creates: Iterable[Create]) -> tuple[Create, ...]:
    """One worker of each group: of the same template, the cluster takes all or none."""
    firsts: dict[str, Create] = {}
    for create in creates:
        firsts.setdefault(create.worker.group, create)
    if look.job.spec.suspend or not look.observed.pods:
        # Nothing holds anything yet: the whole job is looked at, also a group that has no turn now.
        for name in look.groups:
            firsts.setdefault(name, Create(WorkerId(name, 0, 0)))
    return () if not_built(look.job.spec) else tuple(firsts[name] for name in sorted(firsts))


def _announced(look: _Look, creates: Iterable[Create]) -> tuple[WorkerId, ...]:
    """Whose numbers are marked as given.

    Not those of a Strict job: two processes of one attempt make the same data there, and what the second sends is a
    repeat; while a number that is skipped because the operator died would make other data.
    """
    if look.job.spec.determinism is Determinism.STRICT:
        return ()
    return tuple(create.worker for create in creates)


def _outdated(look: _Look, group: GroupPlan) -> Iterable[PodView]:
    asked = group.wanted - group.given_up - group.done
    views = [look.views[slot] for slot in sorted(asked) if slot in look.views]
    return rollout.outdated_to_replace(
        views,
        template_hash=group.template_hash,
        vacant=len(asked) - len(views),
        strategy=look.job.spec.update_strategy,
    )


def _creates(look: _Look) -> tuple[Create, ...]:
    facts = look.observed.facts
    if facts is None or not facts.is_open or facts.is_paused_by_marker or not_built(look.job.spec):
        return ()
    found = []
    for group in look.groups.values():
        for slot in sorted(group.wanted - group.given_up - group.done):
            view, fate = look.views.get(slot), look.fates.get(slot, SlotFate())
            is_taken = view is not None and (view.live is not None or view.occupied)
            if is_taken or fate.due > look.now:
                continue
            attempt = scale.next_attempt(slot, view, facts)
            worker = WorkerId(slot.group, slot.index, attempt)
            found.append(Create(worker, streak=fate.streak, slot_failures=fate.slot_failures))
    return tuple(found)


def _releases(look: _Look) -> tuple[WorkerId, ...]:
    """Slots that hold a reservation and will not come back for it."""
    facts = look.observed.facts
    if facts is None:
        return ()
    coming = {slot for group in look.groups.values() for slot in group.wanted - group.given_up}
    left = (
        slot
        for slot in sorted(facts.reservations)
        if slot not in coming and not (slot in look.views and look.views[slot].occupied)
    )
    return tuple(
        WorkerId(slot.group, slot.index, max(0, scale.next_attempt(slot, look.views.get(slot), facts) - 1))
        for slot in left
    )


def _requeue(look: _Look) -> float | None:
    """Seconds until the plan would change by itself, though nothing happens."""
    moments = [due for group in look.groups.values() for due in group.backing_off.values()]
    if look.timing.next_deadline is not None and not look.job.spec.suspend:
        moments.append(look.timing.next_deadline)
    moments += (
        pod.deletion_requested + pod.grace_s + LOST_AFTER_S + 1.0
        for pod in look.observed.pods
        if pod.deletion_requested is not None and not pod.ended
    )
    coming = [moment - look.now for moment in moments if moment > look.now]
    return min(coming, default=None)
