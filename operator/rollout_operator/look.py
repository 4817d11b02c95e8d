"""What is derived once from one look at a job, for every branch of the plan: verdicts, counters, slots, clocks. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollout_contract import names
from rollout_contract.names import Slot
from rollout_contract.spec import Determinism, RolloutJob, WorkerGroup, groups_of
from rollout_contract.status import Reason
from rollout_operator import deadlines, failure, finish, scale
from rollout_operator.decisions import Count, Ending, EndingKind, GroupPlan
from rollout_operator.failure import SlotFate, Tally, Verdict
from rollout_operator.observed import Observed, SlotView, StreamFacts


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
class Look:
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


def look_at(job: RolloutJob, observed: Observed, now: float) -> Look:
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
    return Look(job, observed, now, views, verdicts, recorded, counts, groups, fates, timing, ending)


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
