"""The tensordict side of groups of environments: what `SerialEnv` and `ParallelEnv` have in common.

`batch_plan` decides from what is known of the environments how they are stepped; an `Engine` moves the rows.
Everything starts by itself when it is first needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import cloudpickle  # type: ignore[import-untyped]
import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.batch_plan import BatchPlan, plan_of
from rollout_worker.envs.batch_settings import BatchSettings, split_keywords
from rollout_worker.envs.block_engine import BlockEngine
from rollout_worker.envs.engine import Engine, ResetOrder
from rollout_worker.envs.env_creator import EnvCreator
from rollout_worker.envs.factory import EnvFactory, Recipe, is_factory, recipes_of
from rollout_worker.envs.group import EnvGroup
from rollout_worker.envs.metadata import EnvMeta, meta_of
from rollout_worker.envs.row_engine import RowEngine
from rollout_worker.envs.row_group import RowGroup
from rollout_worker.envs.seeding import chain
from rollout_worker.envs.spec_leaves import Device, as_device
from rollout_worker.envs.specs import Composite
from rollout_worker.envs.stacking import stacked, updated
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.transitions import RESET, STEP, keep_entries, keep_unknown, names_of, put
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import VectorSettings

Factories = EnvFactory | Sequence[EnvFactory]
Kwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Values(list[Any]):
    """One value per environment, in order. Calling it gives the values too."""

    def __call__(self) -> list[Any]:
        """The values as a plain list."""
        return list(self)


class Ready(NamedTuple):
    """Environments that are done: their indices, and, with a row for each in that order, their stepped tensordicts and
    the roots that they act on next (both None where there are none)."""

    indices: list[int]
    stepped: TensorDictBase | None
    root: TensorDictBase | None


class BatchedEnv(EnvBase):
    """`num_workers` environments as one, with a leading dimension of that size. See `SerialEnv` and `ParallelEnv`.

    Keywords of both, beside those that they name themselves:

    * `device`: of results and specs; None is the environments' own.
    * `use_buffers`: False sends tensordicts instead of going through a block of arrays; None decides by the specs.
    * `share_individual_td`: True gives lazy stacks; None does where rows cannot be stacked.
    * `consolidate`: whether a tensordict that is sent is packed into one storage first.
    * `policy_proof`: kept as an attribute, never called.
    * `check_finite`: NaN and infinity in observations and rewards are errors.
    * `on_env_error`: "raise" closes the batch; "restart" makes a new environment in the place of one that raises, ends
      its trajectory as truncated, and marks that frame False under `("next", "valid")`. `restarts` counts them.
    * `non_blocking`: passed on to copies between devices.
    """

    _in_process: bool
    _no_settings: frozenset[str]
    """Settings that this kind does not take."""

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Factories,
        *,
        create_env_kwargs: Kwargs = None,
        device: Device = None,
        policy_proof: Callable[..., Any] | None = None,
        **keywords: Any,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int):
            raise TypeError(f"num_workers must be an int, not {type(num_workers).__name__}")
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}; it must be at least 1")
        known = split_keywords(keywords, type(self).__name__)
        self._refuse_settings(known)
        super().__init__(device=device, batch_size=(num_workers,))
        self.num_workers = num_workers
        self.policy_proof = policy_proof
        hidden = self.__dict__
        hidden["_wanted_device"] = as_device(device)
        hidden["_settings"] = BatchSettings(**known)
        hidden["_group"] = hidden["_engine"] = hidden["_plan"] = hidden["_seed"] = None
        self._take_factories(create_env_fn, create_env_kwargs)
        self._plan_anew()

    def _refuse_settings(self, names: Mapping[str, Any]) -> None:
        for name in names:
            if name in self._no_settings:
                raise TypeError(f"{type(self).__name__} has no keyword {name!r}: it starts no processes")

    def _take_factories(self, factories: Factories, kwargs: Kwargs) -> None:
        recipes = recipes_of(factories, self.num_workers, kwargs)
        _refuse_other_kwargs(factories, kwargs)
        is_one = is_factory(factories)
        several = [factories] * self.num_workers if is_one else list(cast("Sequence[Any]", factories))
        self.__dict__["_factories"] = several
        self.__dict__["_is_one_task"] = len({id(factory) for factory in self._factories}) == 1
        self.__dict__["_recipes"] = recipes
        given = [kwargs or {}] * self.num_workers if kwargs is None or isinstance(kwargs, Mapping) else kwargs
        self.__dict__["_kwargs"] = [cloudpickle.loads(cloudpickle.dumps(dict(each))) for each in given]

    def _plan_anew(self) -> None:
        metas: dict[Recipe, EnvMeta] = {}
        for index, (recipe, factory) in enumerate(zip(self._recipes, self._factories, strict=True)):
            if recipe not in metas:
                known = factory.meta_data if isinstance(factory, EnvCreator) else None
                metas[recipe] = known if known is not None else meta_of(recipe, index)
        hidden = self.__dict__
        hidden["_metas"] = [metas[recipe] for recipe in self._recipes]
        self._plan_from_metas()

    def _plan_from_metas(self) -> None:
        hidden = self.__dict__
        plan = plan_of(
            self._metas,
            self._settings,
            device=self._wanted_device,
            is_one_task=self._is_one_task,
            is_in_process=self._in_process,
        )
        hidden["_plan"] = plan
        hidden["_batch_size"], hidden["_device"] = plan.batch_size, plan.device
        hidden["_specs"] = {group: tree.lock_() for group, tree in plan.specs().items()}

    @abstractmethod
    def _passed_on(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments of a method call that go on to the environments."""

    @abstractmethod
    def _make_group(self, kind: type[EnvGroup], **more: Any) -> EnvGroup:
        """The group of such a kind, not started."""

    # -- what was asked for ----------------------------------------------------------------------------------------

    @property
    def create_env_fn(self) -> list[Any]:
        """The factory of each environment."""
        return self._factories  # type: ignore[no-any-return]

    @property
    def create_env_kwargs(self) -> list[dict[str, Any]]:
        """The keywords of each factory call: copies of its own. `update_kwargs` changes them."""
        return self._kwargs  # type: ignore[no-any-return]

    @property
    def meta_data(self) -> Any:
        """What is known of the environments: one record, or, for several tasks, one per environment."""
        return self._metas[0] if self._is_one_task else list(self._metas)

    @property
    def share_individual_td(self) -> bool:
        """Whether results are lazy stacks of rows."""
        return self._plan.is_lazy  # type: ignore[no-any-return]

    @property
    def consolidate(self) -> bool:
        """Whether tensordicts that are sent are packed first."""
        return self._settings.consolidate  # type: ignore[no-any-return]

    @property
    def non_blocking(self) -> bool:
        """Whether copies between devices may be asynchronous; results are complete all the same."""
        return self._settings.non_blocking  # type: ignore[no-any-return]

    @property
    def _use_buffers(self) -> bool:
        return not self._plan.is_dynamic and self._settings.use_buffers is not False

    def configure_parallel(  # type: ignore[override]
        self,
        *,
        use_buffers: bool | None = None,
        shared_memory: bool | None = None,
        memmap: bool | None = None,
        mp_start_method: str | None = None,
        num_threads: int | None = None,
        num_sub_threads: int | None = None,
        non_blocking: bool | None = None,
        daemon: bool | None = None,
    ) -> Self:
        """Change settings before the start (None: as it is); refuses what the constructor refuses. Gives the environment.

        Raises RuntimeError while it runs.
        """
        if not self.is_closed:
            raise RuntimeError(
                f"{type(self).__name__} runs: configure it before its start, or close it first"
            )
        changes = {
            "use_buffers": use_buffers,
            "shared_memory": shared_memory,
            "memmap": memmap,
            "mp_start_method": mp_start_method,
            "num_threads": num_threads,
            "num_sub_threads": num_sub_threads,
            "non_blocking": non_blocking,
            "daemon": daemon,
        }
        self._refuse_settings({name: value for name, value in changes.items() if value is not None})
        self.__dict__["_settings"] = self._settings.changed(changes)
        self._plan_from_metas()
        return self

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Merge keywords into those of all factory calls, or each mapping into one's; used at the next start.

        Raises RuntimeError for another number of mappings than there are environments.
        """
        if isinstance(kwargs, Mapping):
            kwargs = [kwargs] * self.num_workers
        if len(kwargs) != self.num_workers:
            raise RuntimeError(f"{len(kwargs)} mappings of keywords for {self.num_workers} environments")
        merged = [{**before, **new} for before, new in zip(self._kwargs, kwargs, strict=True)]
        self.__dict__["_recipes"] = recipes_of(self._factories, self.num_workers, merged)
        self.__dict__["_kwargs"] = [cloudpickle.loads(cloudpickle.dumps(each)) for each in merged]

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the environments. Raises RuntimeError if they run already; the first use starts them anyway."""
        if not self.is_closed:
            raise RuntimeError(f"{type(self).__name__} has been started already")
        plan: BatchPlan = self._plan
        _require(plan.device)
        if plan.uses_block:
            group: EnvGroup = self._make_group(VectorEnv)
        else:
            group = self._make_group(
                RowGroup, crosses_pipes=not self._in_process, consolidate=self._settings.consolidate
            )
        group.start()
        self.__dict__["_group"] = group
        self.__dict__["_engine"] = self._engine_over(group, plan)

    @property
    def shared_tensordict_parent(self) -> TensorDictBase:
        """The block that environments write into, locked; its content changes with every step.

        Raises RuntimeError where nothing runs, or rows go without a block.
        """
        engine = self.__dict__["_engine"]
        if not isinstance(engine, BlockEngine):
            why = "it has not been started" if engine is None else "its rows go without a buffer"
            raise RuntimeError(f"{type(self).__name__} has no shared block: {why}")
        return engine.memory(is_file=self._settings.memmap and not self._in_process)

    @property
    def shared_tensordicts(self) -> list[TensorDictBase]:
        """Its rows, locked too."""
        return [row.lock_() for row in self.shared_tensordict_parent.unbind(0)]

    def _engine_over(self, group: EnvGroup, plan: BatchPlan) -> Engine:
        if isinstance(group, VectorEnv):
            return BlockEngine(group, device=self.device, sizes=plan.sizes(), takes_rows=plan.takes_rows)
        assert isinstance(group, RowGroup)
        return RowEngine(group, plan.metas, device=self.device, is_lazy=plan.is_lazy)

    def _vector_settings(self) -> VectorSettings:
        settings: BatchSettings = self._settings
        return VectorSettings(
            rules=StepRules(check_finite=settings.check_finite, restarts=settings.on_env_error == "restart")
        )

    @property
    def is_closed(self) -> bool:
        """True before the first start, after `close`, and after a failure."""
        group = self.__dict__["_group"]
        return group is None or group.is_closed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments and give back processes and memory. The next use starts anew.

        Raises RuntimeError where nothing is open, unless `raise_if_closed` is False. A failed environment
        counts as open, once.
        """
        group: EnvGroup | None = self.__dict__["_group"]
        if group is None and raise_if_closed:
            raise RuntimeError(
                f"{type(self).__name__} is closed already; pass raise_if_closed=False to allow that"
            )
        self.__dict__["_group"] = self.__dict__["_engine"] = None
        if group is not None:
            group.close()

    @property
    def vector(self) -> EnvGroup:
        """The running group; started if nothing runs. After a failure it is closed, and its calls say so."""
        if self.__dict__["_group"] is None:
            self.start()
        return self.__dict__["_group"]  # type: ignore[no-any-return]

    @property
    def restarts(self) -> list[int]:
        """How often each environment was replaced after a failure, since the start."""
        return [0] * self.num_workers if self.is_closed else self.vector.restarts

    # -- specs -----------------------------------------------------------------------------------------------------

    def _spec_trees(self) -> dict[str, Composite]:
        return self.__dict__["_specs"]  # type: ignore[no-any-return]

    def _whole(self, group: str, spec: Any) -> Composite:
        return super()._whole(group, spec).lock_()

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
                    self._truncate_last(found)
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

    def _restart_after_failure(self) -> None:
        group: EnvGroup | None = self.__dict__["_group"]
        if group is not None and group.is_closed:
            self.close()

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

    # -- seeds, attributes, state ----------------------------------------------------------------------------------

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Give environment i the i-th seed of the chain that starts at `seed`; gives the one after the last."""
        self._restart_after_failure()
        if seed is None:
            _ = self.vector
            return None
        seeds, following = chain(seed, self.num_workers, is_static=static_seed)
        self.vector.set_seed(seeds)
        self.__dict__["_seed"] = (seed, static_seed)
        return following

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment (or of those in `indices`); one result each, in order."""
        return self.vector.call(name, *args, indices=indices, **kwargs)

    def get_attr(self, name: str, *, indices: Sequence[int] | None = None) -> list[Any]:
        """Read an attribute of each environment."""
        return self.vector.get_attr(name, indices=indices)

    def set_attr(self, name: str, value: Any, *, indices: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment."""
        self.vector.set_attr(name, value, indices=indices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _NEVER_ASKED or "_group" not in self.__dict__:
            return super().__getattr__(name)
        if self.vector.has_method(name):
            return _method(self, name)
        return Values(self.vector.get_attr(name))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """`worker0` … to the state dict of each environment."""
        states = self.call("state_dict")
        return {f"worker{index}": state for index, state in enumerate(states)}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Load what `state_dict` gave; a mapping without `worker0` goes whole to every environment."""
        if "worker0" in state_dict:
            states = {index: state_dict[f"worker{index}"] for index in range(self.num_workers)}
        else:
            states = dict.fromkeys(range(self.num_workers), state_dict)
        self.vector.call_each("load_state_dict", states)

    def add_truncated_keys(self) -> None:
        """Always a RuntimeError: flags are declared where they arise."""
        raise RuntimeError(
            "truncated flags must be declared by the environments themselves, not by their batch"
        )

    def __repr__(self) -> str:
        names = list(dict.fromkeys(meta.name for meta in self._metas))
        text = names[0] if len(names) == 1 else "[" + ", ".join(names) + "]"
        return f"{type(self).__name__}(\n    env={text},\n    batch_size={list(self.batch_size)})"


def _refuse_other_kwargs(factories: Factories, kwargs: Kwargs) -> None:
    each = (
        list(factories) if isinstance(factories, Sequence) and not isinstance(factories, str) else [factories]
    )
    given = list(kwargs) if isinstance(kwargs, Sequence) else [kwargs or {}]
    for creator in each:
        if isinstance(creator, EnvCreator) and any(
            own and dict(own) != creator.create_env_kwargs for own in given
        ):
            raise RuntimeError(
                "create_env_kwargs differ from those of the EnvCreator, which made its environment with "
                f"{creator.create_env_kwargs}; give them to the EnvCreator"
            )


def _require(device: torch.device | None) -> None:
    """Raise RuntimeError for a device that this process cannot use."""
    if device is None or device.type == "cpu":
        return
    try:
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(f"the device {device} cannot be used here: {error}") from error


_OPEN_OPTIONS = frozenset({"break_when_any_done", "set_truncated"})
"""Options of a rollout that leave it to run as it will."""

_NEVER_ASKED = frozenset({"is_closed", "parent_channels", "batch_size"})
"""Names that are the batch's own; where they fail, no environment is asked for them."""


def _root_with(root: TensorDictBase, stepped: TensorDictBase) -> TensorDictBase:
    """The next root: observations, flags, and what else stood at the stepped root (actions, a policy's outputs)."""
    if type(root) is TensorDict and type(stepped) is TensorDict:
        keep_entries(root._tensordict, stepped)
        return root
    return updated(stepped.exclude("next", RESET, STEP), root)


def _method(env: BatchedEnv, name: str) -> Callable[..., list[Any]]:
    def call(*args: Any, **kwargs: Any) -> list[Any]:
        return env.call(name, *env._passed_on(args), **kwargs)

    return call
