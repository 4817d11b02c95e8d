"""One environment that is stepped with tensordicts, in the process where that happens: the caller's, or a child."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.gym import GymEnv
from rollout_worker.envs.metadata import asked_of, env_of, report_of_specs, specs_of
from rollout_worker.envs.native import Start
from rollout_worker.envs.reports import Report
from rollout_worker.envs.row_fit import Declared
from rollout_worker.envs.transitions import RESET, STEP, mask_of, merged_where


class RowSession:
    """An environment of ours, of any batch size, with any specs; or a gymnasium environment, as one of ours."""

    def __init__(self, made: Any) -> None:
        self.owner = env_of(made)
        self.env = asked_of(made)
        size, done = self.owner.batch_size, self.owner.full_done_spec
        observed = self.owner.observation_spec
        self._root = Declared([observed, done], size)
        self._next = Declared([observed, self.owner.full_reward_spec, done], size)
        self._has_looked = False
        self.root: TensorDictBase | None = None
        self.num_steps = 0

    def report(self) -> Report:
        """What the environment says it is."""
        owner = self.owner
        takes_rows = not isinstance(owner, GymEnv)
        return report_of_specs(specs_of(owner), owner.batch_size, name=str(owner), takes_rows=takes_rows)

    def seed(self, seed: int) -> None:
        """Seed the environment now."""
        self.owner.set_seed(seed)

    def stage(self, start: Start) -> None:
        """Never asked for: a row carries what its reset takes."""
        raise TypeError(f"a row carries what its reset takes; {start} is not kept")

    def close(self) -> None:
        """Close the environment."""
        self.owner.close(raise_if_closed=False)

    def reset(self, row: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        """Reset the environment, or the elements that the row's mask marks; gives the root."""
        given = self.owner.reset(None if row is None else self._moved(row), **kwargs)
        if row is None and not self._has_looked:
            self._warn_of_more(given)
        self.num_steps = 0
        fresh = self._root.fit(given)
        mask = None if row is None or self.root is None else row.get(RESET, None)
        if mask is None or self.root is None or bool(mask.all()):
            self.root = fresh
        else:
            self.root = merged_where(mask_of(mask, self.owner.batch_size), fresh, self.root)
        return fresh

    def step(self, row: TensorDictBase) -> TensorDictBase:
        """Step; gives what stands under `next` then."""
        following = self._next.fit(self.owner.step(self._moved(row)).get("next"))
        self._stepped_to(following)
        return following

    def step_and_reset(self, row: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Step, and reset what is done; gives `next`, and the fresh root where anything was reset."""
        mask = row.get(STEP, None)
        stepped = self.owner.step(self._moved(row)).get("next")
        following = self._next.fit(stepped)
        done = self.owner._any_done(stepped)
        if mask is not None:
            done = done & mask.reshape(done.shape).to(done.device)
        self._stepped_to(following)
        if not bool(done.any()):
            return following, None
        following = following.clone()  # the environment may write its reset where this observation lies
        marks = TensorDict({RESET: done.unsqueeze(-1)}, batch_size=self.owner.batch_size)
        fresh = self._root.fit(self.owner.reset(marks))
        self.root = fresh if bool(done.all()) else merged_where(done, fresh, following)
        return following, fresh

    def acting(self, taken: Mapping[Key, torch.Tensor], mask: torch.Tensor | None) -> TensorDictBase:
        """A row to step: what the environment observed last, actions and states, and which elements are to be stepped."""
        if self.root is None:
            self.reset(None, {})
        row: TensorDictBase = self._root.fit(self.root)
        for key, value in taken.items():
            row.set(key, value)
        return row if mask is None else row.set(STEP, mask.unsqueeze(-1))

    def _stepped_to(self, following: TensorDictBase) -> None:
        self.root = following
        self.num_steps += 1

    def _moved(self, row: TensorDictBase) -> TensorDictBase:
        device = self.owner.device
        return row if device is None or row.device == device else row.to(device)

    def _warn_of_more(self, given: TensorDictBase) -> None:
        self._has_looked = True
        extra = self._root.undeclared(given)
        if extra:
            names = ", ".join(map(spelled, extra))
            warnings.warn(f"{self.owner}: no spec declares {names}; dropped", stacklevel=2)
