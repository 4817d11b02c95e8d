"""The tensordict side of groups of environments: what `SerialEnv` and `ParallelEnv` have in common.

`batch_plan` decides from what is known of the environments how they are stepped; an `Engine` moves the rows.
Everything starts by itself when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.batch_asking import BatchAsking
from rollout_worker.envs.block_engine import BlockEngine
from rollout_worker.envs.engine import Engine, ResetOrder
from rollout_worker.envs.rolling import truncate_last
from rollout_worker.envs.spec_leaves import as_device
from rollout_worker.envs.stacking import stacked, updated
from rollout_worker.envs.transitions import RESET, STEP, keep_entries, keep_unknown, names_of, put


class Ready(NamedTuple):
    """Environments that are done: their indices, and, with a row for each in that order, their stepped tensordicts and
    the roots that they act on next (both None where there are none)."""

    indices: list[int]
    stepped: TensorDictBase | None
    root: TensorDictBase | None


class BatchedEnv(BatchAsking):
    """`num_workers` environments as one, with a leading dimension of that size. See `SerialEnv` and `ParallelEnv`.

    Keywords of both, beside those that they name themselves:

    * `device`: of results and specs; None is the environments' own.
    * `meta_data`: what the environments are. None makes one beforehand (of each factory), looks at it, and closes it.
      An `EnvMetaData` for all, or one for each, makes none; so does "workers", where they say themselves what they are, and
      are started by the constructor. What they report when they are made must agree with it: MetaDataMismatch, where not.
    * `use_buffers`: False sends tensordicts instead of going through a block of arrays; None decides by the specs.
    * `share_individual_td`: True gives lazy stacks; None does where rows cannot be stacked.
    * `consolidate`: whether a tensordict that is sent is packed into one storage first.
    * `policy_proof`: kept as an attribute, never called.
    * `check_finite`: NaN and infinity in observations and rewards are errors.
    * `on_env_error`: "raise" closes the batch; "restart" makes a new environment in the place of one that raises, and a
      new process, with new environments, in the place of one that is lost or stuck. The trajectory ends as truncated in
      a frame that is False under `("next", "valid")`. `restarts` counts them; `max_restarts` of one environment (None:
      any number), or 4 failures of it without a good step between, end in the first one's error.
    * `non_blocking`: passed on to copies between devices.
    """

    # -- resets and steps ------------------------------------------------------------------------------------------

    def reset(
        self,
        td: TensorDictBase | None = None,
        *,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """Reset all environments, or those that `td["_reset"]` marks. `kwargs` go to every reset, `list_of_kwargs`
        holds those of each environment; where both give one, that of `kwargs` counts.

        Raises ValueError where `list_of_kwargs` has another length than there are environments.
        """
        each = self._reset_kwargs(list_of_kwargs, kwargs)
        if td is None:
            self._restart_after_failure()
            return self._running().reset(ResetOrder(None, None, each))
        self._refuse_size(td)
        mask = self._reset_mask(td)
        if mask is None:
            self._restart_after_failure()
        return self._reset_into(td, ResetOrder(td, mask, each))

    def _reset_into(self, td: TensorDictBase, order: ResetOrder) -> TensorDictBase:
        fresh = self._ready(order.mask).reset(order)
        td.exclude(*self.reset_keys, "next", inplace=True)
        return updated(td, fresh)

    def _reset_kwargs(
        self, each: Sequence[Mapping[str, Any]] | None, common: Mapping[str, Any]
    ) -> list[Mapping[str, Any]]:
        if each is None:
            return [common] * self.num_workers
        if len(each) != self.num_workers:
            raise ValueError(f"list_of_kwargs holds {len(each)} mappings for {self.num_workers} environments")
        return [{**own, **common} for own in each]

    def _reset_done(self, root: TensorDictBase, skipped: torch.Tensor | None) -> TensorDictBase:
        done = self._any_done(root)
        if not bool(done.any()):
            return root
        self._refuse_size(root)
        order = ResetOrder(root, done, [{}] * self.num_workers, only_mask=True)
        return updated(root.exclude(*self.reset_keys, "next"), self._ready(done).reset(order))

    def step(self, td: TensorDictBase) -> TensorDictBase:
        self._advance(td, autoreset=False)
        return td

    def step_and_maybe_reset(self, td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        root = self._advance(td, autoreset=True)
        assert root is not None
        return td, root

    def _advance(self, td: TensorDictBase, *, autoreset: bool) -> TensorDictBase | None:
        """Step, and put what came of it under `next`; gives the next root where rows are reset by themselves."""
        if td.batch_size != self._plan.batch_size:
            self._refuse_size(td)
        engine: Engine | None = self.__dict__["_engine"] or self._ready(None)
        assert engine is not None
        entries = names_of(td)
        has_next = "next" in entries
        mask = self._step_mask(td) if STEP in entries else None
        if mask is not None and bool(mask.all()):
            mask = None
        following, root = engine.step(td, mask, autoreset=autoreset)
        if has_next:
            passed = td.get("next")
            keep_unknown(following, passed)
        put(td, "next", following)
        if root is None:
            return None
        if has_next:
            keep_unknown(root, passed.exclude(*self.reward_keys))
        return _root_with(root, td)

    def rollout(
        self, max_steps: int, policy: Any = None, callback: Any = None, **options: Any
    ) -> TensorDictBase:
        """Act for up to `max_steps` steps; see `EnvBase.rollout`. Random actions that nothing depends on are stepped in
        runs."""
        is_open = (
            policy is None
            and callback is None
            and options.get("break_when_any_done") is False
            and not set(options) - _OPEN_OPTIONS
        )
        if is_open and max_steps > 0:
            self._restart_after_failure()
            engine = self._running()
            if isinstance(engine, BlockEngine) and engine.can_run_open():
                found = engine.run_open(max_steps, self.full_action_spec)
                if options.get("set_truncated"):
                    truncate_last(self, found)
                return found
        return super().rollout(max_steps, policy, callback, **options)

    # -- some environments at a time -------------------------------------------------------------------------------

    def send(self, td: TensorDictBase, indices: Sequence[int] | None = None) -> None:
        """Have environments stepped, and reset where they end, without waiting for them.

        `td` has one row for each of `indices` (None: all environments), with their actions. What comes of them is
        given by `recv`. Raises RuntimeError for an environment that was sent and not received yet.
        """
        chosen = list(range(self.num_workers)) if indices is None else [int(index) for index in indices]
        if len(td.batch_size) == 0 or td.batch_size != (len(chosen), *self.batch_size[1:]):
            raise RuntimeError(
                f"the tensordict has the batch size {list(td.batch_size)} for {len(chosen)} environments of "
                f"{list(self.batch_size[1:])}"
            )
        for index in chosen:
            if not 0 <= index < self.num_workers:
                raise IndexError(
                    f"there is no environment {index}; indices go from 0 to {self.num_workers - 1}"
                )
        self._ready(None).send(td, chosen)
        self.__dict__.setdefault("_sent", {}).update(zip(chosen, td.unbind(0), strict=True))

    def recv(self, min_ready: int = 1, *, timeout_s: float | None = None) -> Ready:
        """Wait until `min_ready` environments that were sent are done; gives all that are.

        With `timeout_s`, gives those that were done by then (maybe none). Raises RuntimeError if none was sent.
        """
        indices, following, root = self._running().receive(min_ready, timeout_s)
        if following is None or root is None:
            return Ready([], None, None)
        sent = self.__dict__["_sent"]
        stepped = stacked([sent.pop(index) for index in indices], is_lazy=self._plan.is_lazy)
        stepped = stepped.exclude("next").set("next", following)
        return Ready(indices, stepped, _root_with(root, stepped))

    def _refuse_size(self, td: TensorDictBase) -> None:
        if td.batch_size != self.batch_size:
            raise RuntimeError(
                f"the tensordict has the batch size {list(td.batch_size)}; {type(self).__name__} expects "
                f"{list(self.batch_size)}"
            )

    def _running(self) -> Engine:
        _ = self.vector
        return self.__dict__["_engine"]  # type: ignore[no-any-return]

    def _ready(self, mask: torch.Tensor | None) -> Engine:
        """The engine, with every row reset once where it has just been started (for a step, or a reset of some)."""
        is_fresh = self.__dict__["_group"] is None
        engine = self._running()
        if is_fresh:
            engine.reset(ResetOrder(None, None, [{}] * self.num_workers))
        return engine

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put a random action into each row of `td` (or of a new tensordict)."""
        if td is None:
            td = TensorDict({}, batch_size=self.batch_size, device=self.device)
        if not self._plan.is_lazy:
            for key, spec in self._specs["action"].leaves():
                if len(key) == 1:
                    put(td, key[0], spec.rand())
                else:
                    td.set(key, spec.rand())
            return td
        action = self.full_action_spec.rand()
        return updated(td, action)

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError("a batched environment resets through its engine")

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError("a batched environment steps through its engine")

    # -- devices ---------------------------------------------------------------------------------------------------

    def to(self, device: Any) -> Self:  # type: ignore[override]
        """Give results and specs on another device from now on. Environments stay where they are."""
        wanted = as_device(device)
        if wanted == self.device:
            return self
        hidden = self.__dict__
        hidden["_wanted_device"] = wanted
        hidden["_settings"] = self._settings.changed({"non_blocking": True})
        self._plan_from_metas()
        if not self.is_closed:
            hidden["_engine"] = self.__dict__["_engine"].moved(self.device)
        return self


_OPEN_OPTIONS = frozenset({"break_when_any_done", "set_truncated"})
"""Options of a rollout that leave it to run as it will."""


def _root_with(root: TensorDictBase, stepped: TensorDictBase) -> TensorDictBase:
    """The next root: observations, flags, and what else stood at the stepped root (actions, a policy's outputs)."""
    if type(root) is TensorDict and type(stepped) is TensorDict:
        keep_entries(root._tensordict, stepped)
        return root
    return updated(stepped.exclude("next", RESET, STEP), root)
