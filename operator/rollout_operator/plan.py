"""What to do for a job: a pure function of its document, of what was observed, and of the time.

Called once per reconcile, carried out by `apply`. Running it again on what it led to gives an empty plan. The
questions, in order: ours? over? ended just now? suspended? and then, group by group, which slots, which attempts. Each
question's answer is in the module named after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollout_contract import names
from rollout_contract.messages import EndKind, EndMarker
from rollout_contract.names import WorkerId
from rollout_contract.spec import Determinism, RolloutJob
from rollout_contract.status import Reason, is_finished
from rollout_contract.unbuilt import not_built
from rollout_operator import finish, rollout, scale
from rollout_operator.decisions import (
    Create,
    Delete,
    GroupPlan,
    Motion,
    Plan,
    Why,
)
from rollout_operator.failure import SlotFate
from rollout_operator.look import Look, look_at
from rollout_operator.observed import LOST_AFTER_S, Observed
from rollout_operator.pods import PodView

MAX_CREATES = 250
"""Pods created by one reconcile; the rest come with the next, so that one large job does not starve others."""


def make_plan(job: RolloutJob, observed: Observed, now: float) -> Plan:
    """What one reconcile does. `now` in seconds since 1970."""
    if is_hands_off(job):
        return Plan(hands_off=True)
    if is_finished(job.status):
        return finish.plan_finished(job, observed, now)
    look = look_at(job, observed, now)
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


def _plan_suspended(look: Look) -> Plan:
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


def _plan_running(look: Look) -> Plan:
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


def _deletes(look: Look) -> tuple[Delete, ...]:
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


def _successors(look: Look, deletes: Iterable[Delete]) -> Iterator[Create]:
    """The workers that would follow on those that give way to an edited template."""
    facts = look.observed.facts
    for delete in deletes:
        if delete.why is Why.OUTDATED and facts is not None:
            slot = delete.pod.slot
            attempt = scale.next_attempt(slot, look.views.get(slot), facts)
            yield Create(WorkerId(slot.group, slot.index, attempt))


def _checks(look: Look, creates: Iterable[Create]) -> tuple[Create, ...]:
    """One worker of each group: of the same template, the cluster takes all or none."""
    if not look.observed.pods and not look.job.spec.suspend and len(look.groups) == 1:
        return ()  # the first creation says as much, and nothing is there that it could cost
    firsts: dict[str, Create] = {}
    for create in creates:
        firsts.setdefault(create.worker.group, create)
    if look.job.spec.suspend or not look.observed.pods:
        # Nothing holds anything yet: the whole job is looked at, also a group that has no turn now.
        for name in look.groups:
            firsts.setdefault(name, Create(WorkerId(name, 0, 0)))
    return () if not_built(look.job.spec) else tuple(firsts[name] for name in sorted(firsts))


def _announced(look: Look, creates: Iterable[Create]) -> tuple[WorkerId, ...]:
    """Whose numbers are marked as given.

    Not those of a Strict job: two processes of one attempt make the same data there, and what the second sends is a
    repeat; while a number that is skipped because the operator died would make other data.
    """
    if look.job.spec.determinism is Determinism.STRICT:
        return ()
    return tuple(create.worker for create in creates)


def _outdated(look: Look, group: GroupPlan) -> Iterable[PodView]:
    asked = group.wanted - group.given_up - group.done
    views = [look.views[slot] for slot in sorted(asked) if slot in look.views]
    return rollout.outdated_to_replace(
        views,
        template_hash=group.template_hash,
        vacant=len(asked) - len(views),
        strategy=look.job.spec.update_strategy,
    )


def _creates(look: Look) -> tuple[Create, ...]:
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


def _releases(look: Look) -> tuple[WorkerId, ...]:
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


def _requeue(look: Look) -> float | None:
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
