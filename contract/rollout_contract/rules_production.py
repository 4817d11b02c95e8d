"""Rules between environments, collector and determinism: what makes a batch. Part of `spec_rules`.

Each yields a fault at the field that a user would change, and says what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rollout_contract.errors import Fault
from rollout_contract.faults import duplicates, shown
from rollout_contract.fields import MAX_ALL_KWARGS_BYTES, MAX_KWARGS_BYTES
from rollout_contract.spec_enums import CollectorMode, Coordination, Determinism, StartPolicy
from rollout_contract.spec_models import RolloutJobSpec

ONE_COLLECTOR = (CollectorMode.SYNC, CollectorMode.ASYNC)
JOINT_BATCHES = (CollectorMode.SYNC, CollectorMode.MULTI_SYNC)
"""Modes whose batch is made by all environments at once, so that its weights and its content can be fixed beforehand."""


def kwargs_come_from_one_place(spec: RolloutJobSpec) -> Iterator[Fault]:
    if spec.env.kwargs is not None and spec.env.kwargs_from is not None:
        yield Fault(
            "spec.env.kwargsFrom", None, "kwargs and kwargsFrom exclude each other. Keep one of them."
        )


def kwargs_fit(spec: RolloutJobSpec) -> Iterator[Fault]:
    tasks = {f"spec.env.tasks[{i}].kwargs": task.kwargs for i, task in enumerate(spec.env.tasks or ())}
    places = {"spec.env.kwargs": spec.env.kwargs, "spec.policy.kwargs": spec.policy.kwargs, **tasks}
    sizes = {
        path: len(json.dumps(kwargs, separators=(",", ":"), ensure_ascii=False).encode())
        for path, kwargs in places.items()
        if kwargs is not None
    }
    for path, size in sizes.items():
        if size > MAX_KWARGS_BYTES:
            yield Fault(
                path,
                None,
                f"has {size} bytes as JSON, should be at most {MAX_KWARGS_BYTES}. Put large data into the image.",
            )
    total = sum(sizes.values())
    if total > MAX_ALL_KWARGS_BYTES and max(sizes.values()) <= MAX_KWARGS_BYTES:
        yield Fault(
            "spec",
            None,
            f"all kwargs together have {total} bytes as JSON, should be at most {MAX_ALL_KWARGS_BYTES}: "
            "a worker gets them in one variable. Put large data into the image.",
        )


def envs_split_evenly(spec: RolloutJobSpec) -> Iterator[Fault]:
    envs, collectors = spec.env.envs_per_worker, spec.collector.collectors_per_worker
    if envs % collectors:
        yield Fault(
            "spec.env.envsPerWorker",
            envs,
            f"{envs} is not a multiple of collectorsPerWorker ({collectors}). Use {_next_multiple(envs, collectors)}.",
        )


def tasks_make_up_the_envs(spec: RolloutJobSpec) -> Iterator[Fault]:
    tasks = spec.env.tasks
    if tasks is None:
        return
    total = sum(task.count for task in tasks)
    if total != spec.env.envs_per_worker:
        yield Fault(
            "spec.env.tasks",
            total,
            f"the counts sum to {total}, not to envsPerWorker ({spec.env.envs_per_worker}). "
            f"Use envsPerWorker: {total}, or change the counts.",
        )


def task_names_are_unique(spec: RolloutJobSpec) -> Iterator[Fault]:
    for name in duplicates(task.name for task in spec.env.tasks or ()):
        yield Fault(
            "spec.env.tasks", name, f"the name {shown(name)} is there more than once. Give each task its own."
        )


def no_process_without_env(spec: RolloutJobSpec) -> Iterator[Fault]:
    processes, envs = spec.env.processes, spec.env.envs_per_worker
    if processes is not None and processes > envs:
        yield Fault(
            "spec.env.processes",
            processes,
            f"{processes} is more than envsPerWorker ({envs}): some would have no environment. Use at most {envs}.",
        )


def mode_fits_number_of_collectors(spec: RolloutJobSpec) -> Iterator[Fault]:
    mode, count = spec.collector.mode, spec.collector.collectors_per_worker
    if mode in ONE_COLLECTOR and count != 1:
        yield Fault(
            "spec.collector.collectorsPerWorker",
            count,
            f"{count} is not possible with mode {mode}, which has one collector. Use 1, or mode MultiSync or MultiAsync.",
        )


def frames_fit_envs(spec: RolloutJobSpec) -> Iterator[Fault]:
    frames, envs = spec.collector.frames_per_batch, spec.env.envs_per_worker
    makers, name = envs, "envsPerWorker"
    if spec.collector.mode is CollectorMode.MULTI_ASYNC:
        if envs % spec.collector.collectors_per_worker:
            return
        makers = envs // spec.collector.collectors_per_worker
        name = "envsPerWorker / collectorsPerWorker"
    if frames % makers:
        yield Fault(
            "spec.collector.framesPerBatch",
            frames,
            f"{frames} is not a multiple of {name} ({makers}). Use {_next_multiple(frames, makers)}.",
        )


def _next_multiple(value: int, divisor: int) -> int:
    return -(-value // divisor) * divisor


def preemption_needs_someone_waiting(spec: RolloutJobSpec) -> Iterator[Fault]:
    percent, collector = spec.collector.preemption_threshold_percent, spec.collector
    if percent is None:
        return
    if collector.mode is not CollectorMode.MULTI_SYNC and collector.coordination is not Coordination.BARRIER:
        yield Fault(
            "spec.collector.preemptionThresholdPercent",
            percent,
            f"has no effect with mode {collector.mode} and coordination {collector.coordination}: nobody waits for others. "
            "Remove it, or use mode MultiSync or coordination Barrier.",
        )


def random_frames_fit_total(spec: RolloutJobSpec) -> Iterator[Fault]:
    first, total = spec.collector.init_random_frames, spec.collector.total_frames
    if total is not None and first > total:
        yield Fault(
            "spec.collector.initRandomFrames",
            first,
            f"{first} is more than totalFrames ({total}). Use at most {total}.",
        )


def strict_needs_joint_batches(spec: RolloutJobSpec) -> Iterator[Fault]:
    if spec.determinism is Determinism.STRICT and spec.collector.mode not in JOINT_BATCHES:
        yield Fault(
            "spec.determinism",
            spec.determinism.value,
            f"Strict is not possible with mode {spec.collector.mode}, whose batches depend on timing. "
            "Use mode Sync or MultiSync, or determinism BestEffort.",
        )


def strict_has_no_preemption(spec: RolloutJobSpec) -> Iterator[Fault]:
    percent = spec.collector.preemption_threshold_percent
    if spec.determinism is Determinism.STRICT and percent is not None:
        yield Fault(
            "spec.collector.preemptionThresholdPercent",
            percent,
            "is not possible with determinism Strict: what is cut depends on timing. Remove it, or use BestEffort.",
        )


def strict_can_start(spec: RolloutJobSpec) -> Iterator[Fault]:
    waits = spec.weights.start_policy is StartPolicy.WAIT_FOR_WEIGHTS
    if spec.determinism is Determinism.STRICT and waits and spec.weights.max_staleness is None:
        yield Fault(
            "spec.weights.startPolicy",
            spec.weights.start_policy.value,
            "would wait for ever: with determinism Strict and no maxStaleness, no weights can be published. "
            "Use Immediate, or set maxStaleness.",
        )
