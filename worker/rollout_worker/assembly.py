"""Puts a worker's policy, collector and seeds together from its document. Called by `main`, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rollout_contract.errors import ConfigurationError
from rollout_contract.names import trajectory_base
from rollout_contract.podenv import WorkerDocument
from rollout_contract.quantities import format_bytes
from rollout_contract.seeds import init_seed_of, policy_seed_of, seed_of
from rollout_contract.spec import Determinism, Device, EnvBackend
from rollout_worker.collectors.sync import SyncCollector, leaves_of
from rollout_worker.collectors.trajectories import TrajectoryIds
from rollout_worker.entrypoints import resolve, user_traceback
from rollout_worker.envs.layout import Leaf
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.loop import Seeder
from rollout_worker.policy import open_policy
from rollout_worker.shutdown import StopRequest


def open_collector(document: WorkerDocument, envs: VectorEnv, stop: StopRequest) -> tuple[SyncCollector, Any]:
    """The collector over running environments, and the user's policy object. ConfigurationError if it does not fit."""
    set_up_torch(document)
    module = make_policy(document, envs)
    policy = open_policy(
        module,
        observation_spec=envs.specs.observation,
        action_spec=envs.specs.full_action,
        num_envs=envs.num_envs,
        exploration=document.policy.exploration,
        device=device_of(document),
    )
    leaves = leaves_of(policy)
    try:
        check_shared_memory(document, envs, leaves)
        envs.remap(num_steps=num_steps_of(document), num_blocks=1, extra_leaves=leaves)
    except ValueError as error:  # a key of the environments
        raise ConfigurationError(f"what the policy records needs a name of its own: {error}") from error
    trajectories = TrajectoryIds(
        envs.num_envs, base=trajectory_base(document.group_number, document.index, document.attempt)
    )
    collector = SyncCollector(
        envs,
        policy,
        trajectories=trajectories,
        should_stop=lambda: stop.requested and not stop.may_finish_batch(),
    )
    return collector, module


def num_steps_of(document: WorkerDocument) -> int:
    """Steps of a whole batch: `framesPerBatch` is a multiple of the environments, as the contract checked."""
    return document.collector.frames_per_batch // document.env.envs_per_worker


def check_shared_memory(document: WorkerDocument, envs: VectorEnv, extra_leaves: Sequence[Leaf]) -> None:
    """ConfigurationError, with both numbers, if a batch needs more than the group's `sharedMemory` allows.

    Memory of the environments' own processes is another matter; with `backend: Serial` none of it is shared.
    """
    allowed = document.shared_memory_bytes
    if allowed is None or document.env.backend is EnvBackend.SERIAL:
        return
    needed = envs.bytes_of(num_steps=num_steps_of(document), extra_leaves=extra_leaves)
    if needed > allowed:
        raise ConfigurationError(
            f"the shared memory for {envs.num_envs} environments x {num_steps_of(document)} steps needs {needed} bytes "
            f"({format_bytes(needed)}), but sharedMemory of worker group {document.group} allows {allowed} "
            f"({format_bytes(allowed)}). Raise it, leave it out, or use fewer environments or frames per batch."
        )


def set_up_torch(document: WorkerDocument) -> None:
    """One thread (children step beside us); deterministic algorithms where the job wants the same bytes every time."""
    torch.set_num_threads(1)
    if document.determinism is Determinism.STRICT:
        torch.use_deterministic_algorithms(True)


def device_of(document: WorkerDocument) -> torch.device:
    """Where the policy runs. ConfigurationError for `Cuda` where there is none."""
    if document.device is Device.CUDA and not torch.cuda.is_available():
        raise ConfigurationError("the group asks for device Cuda, but this worker sees no GPU")
    wants_gpu = document.device is Device.CUDA or (
        document.device is Device.AUTO and torch.cuda.is_available()
    )
    return torch.device("cuda" if wants_gpu else "cpu")


def make_policy(document: WorkerDocument, envs: VectorEnv) -> Any:
    """Call the policy's entrypoint, with the random state of the job's version 0: all workers start equal."""
    factory = resolve(document.policy.entrypoint, field="spec.policy.entrypoint")
    torch.manual_seed(init_seed_of(document.seed))
    try:
        policy = factory(envs.observation_spec, envs.action_spec, **(document.policy.kwargs or {}))
    except Exception as error:
        raise ConfigurationError(
            f"spec.policy.entrypoint {document.policy.entrypoint!r} raised {type(error).__name__}: {error}\n"
            f"{user_traceback(error)}"
        ) from error
    if isinstance(policy, torch.nn.Module):
        policy.to(device_of(document)).eval().requires_grad_(False)
    return policy


def open_seeder(document: WorkerDocument) -> Seeder:
    """What sets the policy's randomness for an epoch, and derives the environments' seeds."""
    indices = range(document.first_env_index, document.first_env_index + document.env.envs_per_worker)

    def seed_all(seed: int, seed_epoch: int) -> list[int]:
        torch.manual_seed(policy_seed_of(seed, seed_epoch, document.group, document.index, document.attempt))
        return [seed_of(seed, seed_epoch, document.group, index, document.attempt) for index in indices]

    return seed_all
