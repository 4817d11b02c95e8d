"""The life of a batched environment: from its plan to environments that run, and to their end.

The second layer of `BatchedEnv`: nothing here resets or steps.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.batch_known import BatchKnown
from rollout_worker.envs.batch_plan import BatchPlan
from rollout_worker.envs.batch_settings import BatchSettings
from rollout_worker.envs.block_engine import BlockEngine
from rollout_worker.envs.engine import Engine
from rollout_worker.envs.group import EnvGroup
from rollout_worker.envs.host import Host
from rollout_worker.envs.launch import refuse_import_of_main
from rollout_worker.envs.metadata import metas_of_looked
from rollout_worker.envs.reports import Known
from rollout_worker.envs.row_engine import RowEngine
from rollout_worker.envs.row_group import RowGroup
from rollout_worker.envs.row_memory_engine import RowMemoryEngine
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import Effort, VectorSettings


class BatchSetup(BatchKnown):
    """Start and close. See `BatchedEnv`."""

    @abstractmethod
    def _make_host(self) -> Host:
        """Where the environments will live; nothing is started."""

    @abstractmethod
    def _passed_on(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments of a method call that go on to the environments."""

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the environments. Raises RuntimeError if they run already; the first use starts them anyway.

        Raises MetaDataMismatch (a ValueError) where they are not what is known of them; then nothing is left running.
        """
        if not self.is_closed:
            raise RuntimeError(f"{type(self).__name__} has been started already")
        self._start_on(self._make_host(), self._known())

    def _look_at_own(self) -> None:
        refuse_import_of_main()
        host = self._make_host()
        try:
            looked = host.look(self._recipes, self._vector_settings())
            self.__dict__["_metas_given"] = False
            self._plan_for(metas_of_looked(looked))
            self._start_on(host, None)
        except BaseException:
            host.release()
            raise

    def _start_on(self, host: Host, known: Known | None) -> None:
        plan: BatchPlan = self._plan
        _require(plan.device)
        settings = self._vector_settings()
        group: EnvGroup
        if plan.uses_block:
            group = VectorEnv(self._recipes, settings, host, known=known)
        else:
            group = RowGroup(
                self._recipes,
                settings,
                host,
                plan=plan.rows,
                known=known,
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
        return list(self.effort.restarts)

    @property
    def effort(self) -> Effort:
        """What processes, and waiting for them, have taken since the start; nothing where nothing runs. See `Effort`."""
        return Effort(restarts=(0,) * self.num_workers) if self.is_closed else self.vector.effort


def _require(device: torch.device | None) -> None:
    """Raise RuntimeError for a device that this process cannot use."""
    if device is None or device.type == "cpu":
        return
    try:
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(f"the device {device} cannot be used here: {error}") from error
