"""How single rows of a vector environment begin a new episode."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from rollout_worker.envs.adapters.values import at, leaves_of, rows_of, stacked_leaves
from rollout_worker.envs.autoreset import declared_mode, final_observation
from rollout_worker.envs.describe import Key, Leaves, Path

DISABLED = "Disabled"
Mask = np.ndarray[Any, Any]


class Restarts:
    """What a vector environment can do: its autoreset `mode`, and how a part of its rows is reset."""

    def __init__(self, env: Any) -> None:
        self._env = env
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self.mode = declared_mode(env) or str(getattr(mode, "value", mode))
        self._takes_ids = "env_id" in inspect.signature(env.reset).parameters
        self._takes_mask = self.mode == DISABLED or _is_gymnasiums_own(env)

    def seed_argument(self, seeds: list[int]) -> Any:
        """What this vector environment's `reset` takes as `seed`: one per row, or one number where it draws for all."""
        return seeds if self._takes_ids or _is_gymnasiums_own(self._env) else seeds[0]

    def reset_rows(self, mask: Mask, leaves: Leaves, paths: tuple[Path, ...]) -> list[tuple[Key, Any]]:
        """Reset the rows that the mask marks; gives their observations alone, `[mask.sum(), *shape]`.

        Raises RuntimeError where this vector environment cannot reset a part.
        """
        count = int(mask.sum())
        if self._takes_ids:
            observation, _ = self._env.reset(np.flatnonzero(mask).astype(np.int32))
            return rows_of(observation, leaves, paths, count)
        if not self._takes_mask:
            raise RuntimeError(
                f"{self._env} resets ended rows by itself in the step after (autoreset mode {self.mode}), and cannot "
                "reset a part of its rows. Make it with autoreset mode SameStep or Disabled, or as a SyncVectorEnv "
                "(vectorization_mode='sync')"
            )
        observation, _ = self._env.reset(options={"reset_mask": mask.copy()})
        chosen = [each for each, is_wanted in enumerate(mask) if is_wanted]
        return [
            (key, value[chosen] if hasattr(value, "shape") else [value[each] for each in chosen])
            for key, value in rows_of(observation, leaves, paths, len(mask))
        ]


def _is_gymnasiums_own(env: Any) -> bool:
    from gymnasium import vector  # whoever has a vector environment has loaded it

    inner = getattr(env, "unwrapped", env)
    return isinstance(inner, (vector.SyncVectorEnv, vector.AsyncVectorEnv))


def final_rows(info: Any, ended: Mask, leaves: Leaves, paths: tuple[Path, ...]) -> list[tuple[Key, Any]]:
    """The last observations of the rows that ended, which a reset in the same step has replaced."""
    final = final_observation(info)
    rows = np.flatnonzero(ended)
    if isinstance(final, dict):  # one array per leaf
        each = [
            (key, [at(final, path)[row] for row in rows])
            for (key, _), path in zip(leaves, paths, strict=True)
        ]
        specs = dict(leaves)
        return [(key, stacked_leaves(values, key, specs[key])) for key, values in each]
    singles = [dict(leaves_of(final[row], leaves, paths)) for row in rows]
    return [(key, stacked_leaves([single[key] for single in singles], key, spec)) for key, spec in leaves]
