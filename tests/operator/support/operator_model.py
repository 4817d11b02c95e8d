"""A model of what surrounds the planner: pods that a kubelet moves along, a stream, a clock. No I/O.

`reconcile` is one turn of the loop over the pure functions; it checks after each plan what must never happen.
"""

from __future__ import annotations

from dataclasses import replace

from operator_builders import NOON, UID, disrupted, make_job

from rollout_contract.names import Slot, pod_name
from rollout_contract.spec import Determinism, groups_of
from rollout_contract.status import ConditionType, is_finished, is_true
from rollout_operator.conditions import Seen
from rollout_operator.decisions import CountKind, Outcome, Why
from rollout_operator.failure import Tally, counted_as, tallies_of
from rollout_operator.observed import Observed, StreamFacts, is_lost
from rollout_operator.plan import make_plan
from rollout_operator.pods import ANNOTATION_SLOT_FAILURES, ANNOTATION_STREAK, PodView
from rollout_operator.scale import desired_of
from rollout_operator.status import status_of

KEY = "rollout:{rl/a/3f2a9c1d}:batches"


class Model:
    """One job and its surroundings."""

    def __init__(self, **spec) -> None:
        self.spec = spec
        self.now = NOON
        self.status = None
        self.generation = 1
        self.pods: dict[str, PodView] = {}
        self.created = 0
        self.failures = 0
        """Worker failures that happened and must be counted."""
        self.attempts: dict[Slot, int] = {}
        """The highest attempt ever created, per slot."""
        self.facts = StreamFacts(is_open=False, key=KEY)

    @property
    def job(self):
        return make_job(status=self.status, generation=self.generation, **self.spec)

    # --- what happens around the planner

    def edit(self, **spec) -> None:
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def living(self) -> list[PodView]:
        return sorted((p for p in self.pods.values() if not p.ended), key=lambda p: p.name)

    def kubelet(self) -> None:
        """Pods that start start, pods that were asked to end are gone."""
        for name, pod in list(self.pods.items()):
            if pod.deletion_requested is not None:
                del self.pods[name]
            elif pod.alive and pod.started is None:
                self.pods[name] = replace(pod, started=self.now, phase="Running")
            elif pod.alive and not pod.ready:
                self.pods[name] = replace(pod, ready=True)

    def end(self, name: str, code: int) -> None:
        pod = self.pods[name]
        if self.is_failure(pod, code):
            self.failures += 1
        self.pods[name] = replace(
            pod,
            phase="Failed" if code else "Succeeded",
            ready=False,
            started=pod.started or self.now,
            finished=self.now,
            exit_code=code,
            reason="Error" if code else "Completed",
        )

    def is_failure(self, pod, code) -> bool:
        """Whether the end of a pod with this code is one that must be counted."""
        is_wrong = code not in (76, 143) and not (code == 0 and self.facts.is_complete)
        return is_wrong and pod.deletion_requested is None

    def evict(self, name: str) -> None:
        pod = disrupted(self.pods[name])
        asked = self.now if pod.deletion_requested is None else pod.deletion_requested
        self.pods[name] = replace(pod, deletion_requested=asked)

    def vanish(self, name: str) -> None:
        pod = self.pods.pop(name)
        counted = counted_as(pod)
        if counted is None:
            is_unknown = pod.ended and self.is_failure(pod, pod.exit_code)
        else:
            groups = self.status.worker_groups if self.status else ()
            known = tallies_of(groups, self.pods.values()).get(pod.worker.group, Tally())
            is_unknown = counted[0] is not CountKind.DISRUPTION and counted[1] > known.failures
        self.failures -= is_unknown  # nobody can know of it any more

    def append(self, frames: int) -> None:
        total = self.facts.total_frames
        new = self.facts.frames + frames
        new = new if total is None else min(total, new)
        self.facts = replace(self.facts, frames=new, last_frame_time=self.now)

    # --- one turn

    def observed(self) -> Observed:
        facts = replace(self.facts, server_time=self.now, attempts=dict(self.attempts))
        return Observed(tuple(sorted(self.pods.values(), key=lambda p: (p.worker, p.uid))), facts)

    def reconcile(self, *, dies_after=None):
        """One turn of the loop; returns the plan. `dies_after`: so many steps, and the status is not written."""
        job, observed = self.job, self.observed()
        was_finished = self.status is not None and is_finished(self.status)
        plan = make_plan(job, observed, self.now)
        assert make_plan(job, observed, self.now) == plan
        self._check(job, plan, was_finished)
        steps = self._steps(plan, job)
        for step in steps if dies_after is None else steps[:dies_after]:
            step()
        self._check_slots()
        if dies_after is not None:
            return plan
        status = status_of(Seen(job, observed, plan, Outcome(), self.now))
        if was_finished:
            for type_ in (ConditionType.COMPLETE, ConditionType.FAILED):
                assert is_true(status, type_) == is_true(self.status, type_)
            assert status.completion_time == self.status.completion_time
        self.status = status
        self._check_status(job)
        return plan

    def settle(self, *, with_kubelet: bool, limit: int = 200) -> int:
        """Turns until there is nothing to do; returns how many it took."""
        for turn in range(limit):
            plan = self.reconcile()
            before = dict(self.pods)
            if with_kubelet:
                self.kubelet()
            if plan.is_empty and before == self.pods:
                return turn
        raise AssertionError(f"{limit} turns, and there is still something to do: {plan}")

    # --- what must never happen

    def _check(self, job, plan, was_finished) -> None:
        if was_finished or job.spec.suspend:
            assert plan.create == ()
        if was_finished:
            assert plan.ending is None
        names = {pod_name("a", create.worker) for create in plan.create}
        assert len(names) == len(plan.create)
        assert not names & self.pods.keys()
        for create in plan.create:
            slot = create.worker.slot
            assert create.worker.attempt > self.attempts.get(slot, -1)
            assert create.worker.attempt <= 9999
        uids = [delete.pod.uid for delete in plan.delete]
        assert len(set(uids)) == len(uids)
        for delete in plan.delete:
            assert delete.pod.deletion_requested is None
        if not was_finished and not job.spec.suspend and plan.ending is None:
            self._check_deletes(job, plan)

    def _check_deletes(self, job, plan) -> None:
        """A worker that runs goes only because there are too many, or because its template was edited."""
        for group in groups_of(job.spec):
            alive = [p for p in self.pods.values() if p.worker.group == group.name and p.alive]
            gone = [d for d in plan.delete if d.pod.worker.group == group.name and d.pod.alive]
            scaled = [d for d in gone if d.why is Why.SCALED_DOWN]
            outdated = [d for d in gone if d.why is Why.OUTDATED]
            assert len(gone) == len(scaled) + len(outdated)
            assert len(scaled) <= max(0, len(alive) - desired_of(group, job.spec))
            template = plan.groups[group.name].template_hash
            assert all(d.pod.template_hash != template for d in outdated)
            limit = job.spec.update_strategy.max_unavailable
            assert sum(1 for d in outdated if d.pod.ready) <= limit
            kept_ready = sum(1 for p in alive if p.ready) - sum(1 for d in gone if d.pod.ready)
            if any(d.pod.ready for d in outdated):
                wanted = plan.groups[group.name].wanted - plan.groups[group.name].given_up
                assert kept_ready >= len(wanted) - limit

    def _steps(self, plan, job):
        """What `apply` does, call by call, in its order."""
        steps = [lambda count=count: self._count(count) for count in plan.count]
        if plan.open_stream:
            total = job.spec.collector.total_frames
            steps.append(lambda: self._set_facts(is_open=True, total_frames=total, seed=7))
        if plan.reopen_stream:
            steps.append(lambda: self._set_facts(end=None))
        steps += [lambda delete=delete: self._delete(delete) for delete in plan.delete]
        steps += [lambda create=create: self._start(create, plan) for create in plan.create]
        if plan.marker is not None:
            steps.append(lambda: self._set_facts(end=plan.marker))
        return steps

    def _set_facts(self, **more) -> None:
        self.facts = replace(self.facts, **more)

    def _count(self, count) -> None:
        pod = self.pods[count.pod.name]
        self.pods[pod.name] = replace(pod, annotations={**pod.annotations, **count.annotation})

    def _delete(self, delete) -> None:
        pod = self.pods[delete.pod.name]
        if pod.ended:
            del self.pods[pod.name]
        else:
            self.pods[pod.name] = replace(pod, deletion_requested=self.now)

    def _start(self, create, plan) -> None:
        self.created += 1
        worker = create.worker
        self.attempts[worker.slot] = worker.attempt
        annotations = {}
        if create.streak:
            annotations[ANNOTATION_STREAK] = str(create.streak)
        if create.slot_failures:
            annotations[ANNOTATION_SLOT_FAILURES] = str(create.slot_failures)
        pod = PodView(
            namespace="rl",
            name=pod_name("a", worker),
            uid=f"{UID}-{self.created}",
            worker=worker,
            template_hash=plan.groups[worker.group].template_hash,
            phase="Pending",
            ready=False,
            created=self.now,
            annotations=annotations,
        )
        self.pods[pod.name] = pod

    def _check_slots(self) -> None:
        by_slot: dict[Slot, int] = {}
        for pod in self.pods.values():
            if not pod.ended and not is_lost(pod, self.now):
                by_slot[pod.slot] = by_slot.get(pod.slot, 0) + 1
        assert all(n == 1 for n in by_slot.values()), f"two workers in one slot: {by_slot}"

    def _check_status(self, job) -> None:
        status = self.status
        assert status.completion_time is None or is_finished(status)
        failures = sum(group.failures for group in status.worker_groups)
        assert failures <= self.failures
        if is_true(status, ConditionType.SUSPENDED):
            assert not self.pods
        assert not (is_true(status, ConditionType.COMPLETE) and is_true(status, ConditionType.FAILED))
        if job.spec.determinism is not Determinism.STRICT:
            assert ConditionType.REPRODUCIBLE not in {c.type for c in status.conditions}
