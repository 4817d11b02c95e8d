"""The synchronous collector: a batch on demand, made in place in a block of the vector env.

Called by the worker's loop, once per batch. Knows environments and a policy; knows nothing of streams, versions or budgets
beyond the number of frames it is asked for. A batch is a view on the block: it stays as it is until the next one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_contract.errors import PolicyError
from rollout_contract.messages import EpisodeSummary
from rollout_worker.collectors.trajectories import TrajectoryIds
from rollout_worker.envs.arena import Block
from rollout_worker.envs.commands import Step
from rollout_worker.envs.describe import Key
from rollout_worker.envs.layout import Leaf
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.policy import BlockPolicy, RandomPolicy

Array = np.ndarray[Any, Any]

TRAJ_IDS: Key = ("collector", "traj_ids")
OPEN_LOOP_FRAMES = 16_384
"""Frames that are asked of the children at once by a policy that needs no observations: a fraction of a second, so that
a stop request is still noticed."""


class Stopped(Exception):
    """The collector was told to stop inside a batch; the frames made so far are not delivered."""


@dataclass(frozen=True, slots=True)
class BatchLeaf:
    """One leaf of a batch: `array` is `[num_envs, num_steps, *shape]`, C-contiguous; `dtype` as the block spells it."""

    key: Key
    dtype: str
    array: Array


@dataclass(frozen=True, slots=True)
class Batch:
    """What was collected: `shape` is `[num_envs, num_steps]`; leaves lie in the block, or in copies if it is partial."""

    shape: tuple[int, int]
    leaves: Sequence[BatchLeaf]
    episodes: EpisodeSummary

    @property
    def frames(self) -> int:
        """Frames in the batch."""
        return self.shape[0] * self.shape[1]


def leaves_of(policy: BlockPolicy) -> list[Leaf]:
    """What a block must have beside the environments' own leaves."""
    outputs = [
        Leaf(key, str(dtype).removeprefix("torch."), shape) for key, (dtype, shape) in policy.outputs.items()
    ]
    return [*outputs, Leaf(TRAJ_IDS, "int64")]


class SyncCollector:
    """Steps environments with a policy, `num_steps` at a time.

    `envs` must have been reset, with blocks that hold `leaves_of(policy)`. `should_stop` is asked between steps.
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: BlockPolicy,
        *,
        trajectories: TrajectoryIds,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.envs = envs
        self.policy = policy
        self.trajectories = trajectories
        self._should_stop = should_stop
        self._random = RandomPolicy(envs.specs.full_action, stands_in_for=policy)
        self._written = [*envs.layout.action_keys, *policy.outputs]
        self._last: tuple[Block, tuple[int, int]] | None = None

    @property
    def frames_per_batch(self) -> int:
        """Frames of a whole batch."""
        return self.envs.num_envs * self.envs.layout.num_steps

    def collect(self, frames: int, *, random: int = 0) -> Batch:
        """A batch of at most `frames` frames, the first `random` of them with random actions.

        It has `[num_envs, frames // num_envs]` frames, at most `num_steps` a row; where `frames` is less than the number
        of environments, one step of the first `frames` of them. Raises what environments and policy raise, `Stopped`,
        and ValueError for `frames` < 1.
        """
        if frames < 1:
            raise ValueError(f"a batch has at least one frame, not {frames}")
        num_envs = self.envs.num_envs
        block = self.envs.blocks[0]
        self.envs.begin(block.index)
        if frames < num_envs:
            shape = (frames, 1)
            self._step_first(block, frames, random=random)
        else:
            shape = (num_envs, min(frames // num_envs, self.envs.layout.num_steps))
            self._fill(block, shape[1], random=random)
        self._last = (block, shape)
        return self._finish(block, shape)

    def cut(self) -> Batch:
        """The batch made last, with every running trajectory marked as truncated at its last frame."""
        if self._last is None:
            raise RuntimeError("there is no batch to cut")
        block, shape = self._last
        arrays = block.arrays
        for group in block.layout.done_groups:
            done = arrays["next", *group, "done"][: shape[0], shape[1] - 1]
            arrays["next", *group, "truncated"][: shape[0], shape[1] - 1] |= ~done
            done[...] = True
        return Batch(shape, self._leaves(block, shape), self._episodes(block, shape))

    def reset(self, seeds: Sequence[int | None] | None = None) -> None:
        """Reset all environments; their trajectories get fresh ids."""
        self.envs.reset(seeds)
        self.trajectories.renew()

    def _fill(self, block: Block, num_steps: int, *, random: int) -> None:
        num_envs = self.envs.num_envs
        random_steps, random_envs = divmod(min(random, num_envs * num_steps), num_envs)
        self._run(self._random, block, 0, random_steps)
        step = random_steps
        if random_envs:
            self._act(self.policy, block, step, step + 1)
            policy_actions = {key: block.arrays[key][random_envs:, step].copy() for key in self._written}
            self._act(self._random, block, step, step + 1)
            for key, values in policy_actions.items():
                block.arrays[key][random_envs:, step] = values
            self.envs.step(block.index, step)
            step += 1
        self._run(self.policy, block, step, num_steps)

    def _run(self, policy: BlockPolicy, block: Block, start: int, stop: int) -> None:
        stride = max(1, OPEN_LOOP_FRAMES // self.envs.num_envs) if policy.is_open_loop else 1
        for first in range(start, stop, stride):
            if self._should_stop():
                raise Stopped
            last = min(first + stride, stop)
            self._act(policy, block, first, last)
            self.envs.step_range(block.index, first, last)

    def _step_first(self, block: Block, count: int, *, random: int) -> None:
        """Step the first `count` environments once; the others stay where they are."""
        policy: BlockPolicy = self._random if random >= count else self.policy
        self._act(policy, block, 0, 1)
        if 0 < random < count:
            chosen = {key: block.arrays[key][random:, 0].copy() for key in self._written}
            self._act(self._random, block, 0, 1)
            for key, values in chosen.items():
                block.arrays[key][random:, 0] = values
        for key in block.layout.root_keys:
            block.arrays["next", *key][count:, 0] = block.arrays[key][count:, 0]
        mask = np.arange(self.envs.num_envs) < count
        self.envs.advance(Step(block.index, 0, 1, masked=True), mask=mask)

    @staticmethod
    def _act(policy: BlockPolicy, block: Block, start: int, stop: int) -> None:
        policy.act(block.tensors, start, stop)

    def _finish(self, block: Block, shape: tuple[int, int]) -> Batch:
        rows, steps = shape
        done = block.arrays["next", "done"][:rows, :steps, 0]
        self.trajectories.number(done, block.arrays[TRAJ_IDS][:rows, :steps])
        self._refuse_non_finite(block, shape)
        return Batch(shape, self._leaves(block, shape), self._episodes(block, shape))

    def _episodes(self, block: Block, shape: tuple[int, int]) -> EpisodeSummary:
        ended = self.envs.episodes(block.index)
        inside = (ended.step < shape[1]) & (ended.env_index < shape[0])
        return EpisodeSummary.of(ended.returns[inside].tolist(), ended.lengths[inside].tolist())

    def _leaves(self, block: Block, shape: tuple[int, int]) -> list[BatchLeaf]:
        rows, steps = shape
        return [
            BatchLeaf(leaf.key, leaf.dtype, np.ascontiguousarray(block.arrays[leaf.key][:rows, :steps]))
            for leaf in block.layout.data
        ]

    def _refuse_non_finite(self, block: Block, shape: tuple[int, int]) -> None:
        """Environments check what they write; here is what the policy wrote."""
        for key in self._written:
            values = block.arrays[key][: shape[0], : shape[1]]
            if values.dtype.kind in "fc" and not (finite := np.isfinite(values)).all():
                env, step = np.argwhere(~finite)[0, :2].tolist()
                first = values[env, step].ravel()[~finite[env, step].ravel()][0]
                raise PolicyError(
                    f"the policy's {'.'.join(key)!r} holds {first} for environment {env} at step {step} of the batch: "
                    "only finite numbers are acted on and stored"
                )
