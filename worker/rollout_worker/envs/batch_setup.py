"""What a batched environment is asked to be, and its life: from keywords to a plan, from a plan to environments that run.

The first layer of `BatchedEnv`: nothing here resets or steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import cloudpickle  # type: ignore[import-untyped]
import torch
from tensordict import TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.batch_plan import BatchPlan, plan_of
from rollout_worker.envs.batch_settings import BatchSettings, split_keywords
from rollout_worker.envs.block_engine import BlockEngine
from rollout_worker.envs.engine import Engine
from rollout_worker.envs.env_creator import EnvCreator
from rollout_worker.envs.factory import EnvFactory, Recipe, is_factory, recipes_of
from rollout_worker.envs.group import EnvGroup
from rollout_worker.envs.metadata import EnvMeta, meta_of
from rollout_worker.envs.row_engine import RowEngine
from rollout_worker.envs.row_group import RowGroup
from rollout_worker.envs.row_memory_engine import RowMemoryEngine
from rollout_worker.envs.spec_leaves import Device, as_device
from rollout_worker.envs.specs import Composite
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import Effort, VectorSettings

Factories = EnvFactory | Sequence[EnvFactory]
Kwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class BatchSetup(EnvBase):
    """Keywords, settings, specs, start and close. See `BatchedEnv`."""

    _in_process: bool
    _no_settings: frozenset[str]
    """Settings that this kind does not take."""

    # kept in `__dict__`, so that nn.Module does not look at them
    _settings: BatchSettings
    _plan: BatchPlan
    _recipes: tuple[Recipe, ...]
    _factories: list[Any]
    _kwargs: list[dict[str, Any]]
    _metas: list[EnvMeta]
    _is_one_task: bool
    _wanted_device: torch.device | None

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
        return self._factories

    @property
    def create_env_kwargs(self) -> list[dict[str, Any]]:
        """The keywords of each factory call: copies of its own. `update_kwargs` changes them."""
        return self._kwargs

    @property
    def meta_data(self) -> Any:
        """What is known of the environments: one record, or, for several tasks, one per environment."""
        return self._metas[0] if self._is_one_task else list(self._metas)

    @property
    def share_individual_td(self) -> bool:
        """Whether results are lazy stacks of rows."""
        return self._plan.is_lazy

    @property
    def consolidate(self) -> bool:
        """Whether tensordicts that are sent are packed first."""
        return self._settings.consolidate

    @property
    def non_blocking(self) -> bool:
        """Whether copies between devices may be asynchronous; results are complete all the same."""
        return self._settings.non_blocking

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
                RowGroup,
                crosses_pipes=not self._in_process,
                consolidate=self._settings.consolidate,
                plan=plan.rows,
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
        if not isinstance(engine, BlockEngine | RowMemoryEngine):
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
        rows = RowEngine(group, plan.metas, device=self.device, is_lazy=plan.is_lazy)
        return rows if plan.rows is None else RowMemoryEngine(rows, sizes=plan.sizes())

    def _vector_settings(self) -> VectorSettings:
        settings: BatchSettings = self._settings
        return VectorSettings(
            rules=StepRules(
                check_finite=settings.check_finite,
                restarts=settings.on_env_error == "restart",
                max_restarts=settings.max_restarts,
            )
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

    def _restart_after_failure(self) -> None:
        group: EnvGroup | None = self.__dict__["_group"]
        if group is not None and group.is_closed:
            self.close()

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

    @property
    def effort(self) -> Effort:
        """What processes, and waiting for them, have taken since the start. See `Effort`."""
        return self.vector.effort

    # -- specs -----------------------------------------------------------------------------------------------------

    def _spec_trees(self) -> dict[str, Composite]:
        return self.__dict__["_specs"]  # type: ignore[no-any-return]

    def _whole(self, group: str, spec: Any) -> Composite:
        return super()._whole(group, spec).lock_()

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
