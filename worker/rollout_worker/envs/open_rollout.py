"""A rollout with random actions that looks at nothing on its way: whole runs of frames at one wake-up per process.

What an agent without a policy does does not depend on what it sees, so all actions are drawn first. Called by
`BatchedEnv.rollout` where that is so; gives what stepping one by one gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.describe import Key
from rollout_worker.envs.layout import VALID, flag_keys
from rollout_worker.envs.specs import Composite
from rollout_worker.envs.transitions import tensordict_of, tree_of
from rollout_worker.envs.vector import VectorEnv

CHUNK = 64
"""At most so many frames lie in the block at once."""


def open_rollout(
    group: VectorEnv,
    num_steps: int,
    action_spec: Composite,
    *,
    device: torch.device | None,
    sizes: Mapping[Key, torch.Size],
) -> TensorDictBase:
    """`num_steps` frames of every environment, from where they stand, reset where they end; `[num_envs, num_steps]`.

    The environments must have been reset. The block keeps the length of a chunk afterwards.
    """
    num_envs = group.num_envs
    chunk = min(CHUNK, num_steps)
    if group.settings.num_steps != chunk:
        group.remap(num_steps=chunk)
    layout = group.layout
    flags = flag_keys(layout.done_groups)
    roots: list[Key] = [*layout.root_keys, *flags]
    nexts: list[Key] = [("next", *key) for key in (*layout.root_keys, *layout.reward_keys, *flags)]
    nexts += [VALID] if VALID in group.blocks[0].arrays else []
    tensors = group.blocks[0].tensors
    found = {
        key: torch.empty((num_envs, num_steps, *tensors[key].shape[2:]), dtype=tensors[key].dtype)
        for key in (*roots, *nexts, *layout.action_keys)
    }
    for start in range(0, num_steps, chunk):
        length = min(chunk, num_steps - start)
        group.begin(0)
        tensors = group.blocks[0].tensors
        for key, spec in action_spec.leaves():
            tensors[key][:, :length] = spec.rand((length,)).transpose(0, 1)
        group.step_range(0, 0, length)
        for key, whole in found.items():
            whole[:, start : start + length] = tensors[key][:, :length]
    return _batched(found, (num_envs, num_steps), device, sizes)


def _batched(
    leaves: Mapping[Key, torch.Tensor],
    lead: tuple[int, int],
    device: torch.device | None,
    sizes: Mapping[Key, torch.Size],
) -> TensorDictBase:
    placed: dict[Key, torch.Size] = {("next",): torch.Size(lead)}
    for key, size in sizes.items():
        placed[key] = placed["next", *key] = torch.Size((*lead, *size))
    tree: dict[str, Any] = tree_of(leaves, torch.Size(lead), None, placed)
    made = tensordict_of(tree, torch.Size(lead), None)
    if device is not None:
        made = made.to(device)
    made.refine_names(..., "time")
    return made
