"""Builders for the operator's tests: jobs, pods, stream facts, each in one line."""

from __future__ import annotations

import copy
from dataclasses import replace

from rollout_contract.messages import Heartbeat
from rollout_contract.names import Slot, WorkerId, pod_name
from rollout_contract.podenv import StreamAddress
from rollout_contract.spec import RolloutJob, groups_of, parse_manifest
from rollout_contract.status import RolloutJobStatus
from rollout_operator.conditions import Seen
from rollout_operator.decisions import Outcome
from rollout_operator.look import template_hash_of
from rollout_operator.observed import Observed, StreamFacts
from rollout_operator.plan import make_plan
from rollout_operator.pods import PodCondition, PodView
from rollout_operator.settings import OperatorSettings
from rollout_operator.status import status_of

NOON = 1_767_268_800.0
"""2026-01-01T12:00:00Z"""
UID = "3f2a9c1d-0000-4000-8000-000000000000"
SETTINGS = OperatorSettings(redis=StreamAddress(host="redis", port=6379))

BASE = {
    "env": {"entrypoint": "envs:make_env"},
    "policy": {"entrypoint": "policies:make_policy"},
    "collector": {"framesPerBatch": 100, "totalFrames": 10_000},
}


def merged(base, patch):
    """A JSON merge patch."""
    new = copy.deepcopy(base)
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(new.get(key), dict):
            new[key] = merged(new[key], value)
        elif value is None:
            new.pop(key, None)
        else:
            new[key] = value
    return new


def make_job(*, status=None, generation=1, metadata=None, **spec) -> RolloutJob:
    """A job `a` with the base spec and these fields of it (in YAML's spelling) changed."""
    document = {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {
            "name": "a",
            "namespace": "rl",
            "uid": UID,
            "generation": generation,
            "resourceVersion": "1",
        }
        | (metadata or {}),
        "spec": merged(BASE, spec),
    }
    job = parse_manifest(document)
    return job if status is None else job.model_copy(update={"status": status})


def fixed(name, replicas, **more):
    """A fixed worker group."""
    return {"name": name, "replicas": replicas, **more}


def elastic(name="w", **more):
    """The elastic worker group."""
    return {"name": name, "elastic": True, **more}


def make_pod(
    index,
    *,
    job=None,
    group="default",
    attempt=0,
    state="ready",
    code=None,
    age=100.0,
    ran=50.0,
    ended_ago=0.0,
    deleted_ago=None,
    now=NOON,
    **more,
) -> PodView:
    """A pod of one worker: `state` is unschedulable, pending, starting, ready or ended (with exit code `code`)."""
    worker = WorkerId(group, index, attempt)
    job = job or make_job()
    spec_group = next((g for g in groups_of(job.spec) if g.name == group), None)
    if code is not None:
        state = "ended"
    finished = now - ended_ago if state == "ended" else None
    started = None if state in {"pending", "unschedulable"} else (finished - ran if finished else now - age)
    view = PodView(
        namespace="rl",
        name=pod_name("a", worker),
        uid=f"pod-{worker}",
        worker=worker,
        template_hash=template_hash_of(spec_group) if spec_group else "none",
        phase={
            "pending": "Pending",
            "unschedulable": "Pending",
            "ended": "Failed" if code else "Succeeded",
        }.get(state, "Running"),
        ready=state == "ready",
        created=now - age,
        started=started,
        finished=finished,
        exit_code=code if state == "ended" else None,
        reason={"ended": "Error" if code else "Completed", "unschedulable": "Unschedulable"}.get(state, ""),
        message="0/2 nodes are available" if state == "unschedulable" else "",
        deletion_requested=None if deleted_ago is None else now - deleted_ago,
        annotations={},
    )
    return replace(view, **more)


def counted(pod, kind, number, **more):
    """The pod with its count on it."""
    return replace(pod, annotations={**pod.annotations, "rolloutjob.dev/counted": f"{kind}:{number}"}, **more)


def disrupted(pod):
    """The pod as an eviction leaves it."""
    return replace(
        pod, conditions=(*pod.conditions, PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI"))
    )


def make_facts(*, job=None, now=NOON, **more) -> StreamFacts:
    """An open stream in good order."""
    job = job or make_job()
    base = StreamFacts(
        is_open=True,
        key="rollout:{rl/a/3f2a9c1d}:batches",
        total_frames=job.spec.collector.total_frames,
        seed=7,
        server_time=now,
    )
    return replace(base, **more)


def make_beat(index, state="Collecting", *, group="default", attempt=0, seen=NOON, **more) -> Heartbeat:
    """A heartbeat of one worker."""
    return Heartbeat(group=group, index=index, attempt=attempt, state=state, seen=seen, **more)


def beats(*found):
    """Heartbeats by slot."""
    return {Slot(beat.group, beat.index): beat for beat in found}


def observe(pods=(), facts=None) -> Observed:
    """One look."""
    return Observed(tuple(pods), facts or make_facts())


def status_after(job, observed, now=NOON, outcome=None) -> RolloutJobStatus:
    """The status that one reconcile writes."""
    plan = make_plan(job, observed, now)
    return status_of(Seen(job, observed, plan, outcome or Outcome(), now))


def seen_before(job, observed, now=NOON) -> RolloutJob:
    """The job as a reconcile at `now` leaves it."""
    return job.model_copy(update={"status": status_after(job, observed, now)})


def conditions_of(status):
    """(status, reason) by type."""
    return {c.type: (c.status.value, c.reason) for c in status.conditions}


def message_of(status, type_):
    """The message of one condition."""
    return next(c.message for c in status.conditions if c.type == type_)
