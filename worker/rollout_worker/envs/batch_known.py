"""What a batched environment is asked to be, and what is known of its environments: from keywords to a plan and specs.

The first layer of `BatchedEnv`: nothing here starts, resets or steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import cloudpickle  # type: ignore[import-untyped]
import torch

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.batch_plan import BatchPlan, plan_of
from rollout_worker.envs.batch_settings import BatchSettings, split_keywords
from rollout_worker.envs.env_creator import EnvCreator
from rollout_worker.envs.factory import EnvFactory, Recipe, is_factory, recipes_of
from rollout_worker.envs.metadata import EnvMetaData, meta_of, metas_given
from rollout_worker.envs.reports import Known, Report
from rollout_worker.envs.spec_leaves import Device, as_device
from rollout_worker.envs.specs import Composite

Factories = EnvFactory | Sequence[EnvFactory]
Kwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
MetaData = EnvMetaData | Sequence[EnvMetaData] | Literal["workers"] | None

WORKERS = "workers"
"""As `meta_data`: the environments of the batch say themselves what they are."""


class BatchKnown(EnvBase):
    """Keywords, settings, metadata, specs. See `BatchedEnv`."""

    _in_process: bool
    _no_settings: frozenset[str]
    """Settings that this kind does not take."""

    # kept in `__dict__`, so that nn.Module does not look at them
    _settings: BatchSettings
    _plan: BatchPlan
    _recipes: tuple[Recipe, ...]
    _factories: list[Any]
    _kwargs: list[dict[str, Any]]
    _metas: list[EnvMetaData]
    _metas_given: bool
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
        meta_data: MetaData = None,
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
        if isinstance(meta_data, str) and meta_data == WORKERS:
            self._look_at_own()
            return
        given = metas_given(meta_data, num_workers)
        hidden["_metas_given"] = given is not None or any(map(_is_told, self._factories))
        self._plan_for(self._metas_seen() if given is None else given)

    def _refuse_settings(self, names: Mapping[str, Any]) -> None:
        for name in names:
            if name in self._no_settings:
                raise TypeError(f"{type(self).__name__} has no keyword {name!r}: it starts no processes")

    def _take_factories(self, factories: Factories, kwargs: Kwargs) -> None:
        recipes = recipes_of(factories, self.num_workers, kwargs)
        _refuse_other_kwargs(factories, kwargs)
        is_one = is_factory(factories)
        several: list[Any] = (
            [factories] * self.num_workers if is_one else list(cast("Sequence[Any]", factories))
        )
        self.__dict__["_factories"] = several
        self.__dict__["_is_one_task"] = (
            len(set(map(id, several))) == 1 or len(set(recipes_of(several, self.num_workers, None))) == 1
        )
        self.__dict__["_recipes"] = recipes
        given = [kwargs or {}] * self.num_workers if kwargs is None or isinstance(kwargs, Mapping) else kwargs
        self.__dict__["_kwargs"] = [cloudpickle.loads(cloudpickle.dumps(dict(each))) for each in given]

    def _metas_seen(self) -> list[EnvMetaData]:
        """What each factory makes: known to an EnvCreator, otherwise by making one environment and looking at it."""
        metas: dict[Recipe, EnvMetaData] = {}
        for index, (recipe, factory) in enumerate(zip(self._recipes, self._factories, strict=True)):
            if recipe not in metas:
                known = factory.meta_data if isinstance(factory, EnvCreator) else None
                metas[recipe] = known if known is not None else meta_of(recipe, index)
        return [metas[recipe] for recipe in self._recipes]

    def _plan_for(self, metas: list[EnvMetaData]) -> None:
        self.__dict__["_metas"] = metas
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

    def _known(self) -> Known:
        """What the environments have to say of themselves when they are made."""
        reports: dict[int, Report] = {}
        for meta in self._metas:
            if id(meta) not in reports:
                reports[id(meta)] = meta.report(in_block=self._plan.uses_block)
        return Known(tuple(reports[id(meta)] for meta in self._metas), self._metas_given)

    @abstractmethod
    def _look_at_own(self) -> None:
        """Make the environments of the batch, plan by what they are, and go on with them."""

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

    # -- specs -----------------------------------------------------------------------------------------------------

    def _spec_trees(self) -> dict[str, Composite]:
        return self.__dict__["_specs"]  # type: ignore[no-any-return]

    def _whole(self, group: str, spec: Any) -> Composite:
        return super()._whole(group, spec).lock_()

    def __repr__(self) -> str:
        names = list(dict.fromkeys(meta.name for meta in self._metas))
        text = names[0] if len(names) == 1 else "[" + ", ".join(names) + "]"
        return f"{type(self).__name__}(\n    env={text},\n    batch_size={list(self.batch_size)})"


def _is_told(factory: Any) -> bool:
    return isinstance(factory, EnvCreator) and factory.is_told


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
