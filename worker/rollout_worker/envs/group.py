"""A group of environments that run: how they start, end, fail, are seeded and asked for attributes.

`VectorEnv` steps a group through blocks of arrays, `RowGroup` through tensordicts; where the environments live is
the business of a `Host`. Nothing of either is known here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from rollout_worker.envs.arena import Arena
from rollout_worker.envs.calls import GET_ATTRIBUTE, IS_CALLABLE, SET_ATTRIBUTE, STAGE, Result
from rollout_worker.envs.commands import Request, RowOp, RowWork, Seed, Simple
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.host import Host
from rollout_worker.envs.launch import refuse_import_of_main
from rollout_worker.envs.reports import Known
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import MAX_SEED, Array, Effort, Failure, VectorSettings

T = TypeVar("T")


class EnvGroup(ABC):
    """`num_envs` environments on a host.

    Whatever fails raises EnvError (or ChildLost, StepTimeout, EntrypointError) naming environment, process and
    call; the group is closed by then, says so to every further call with an error of the same class, and can be
    started again.
    """

    _stepped_by: SteppedBy

    def __init__(
        self,
        recipes: Sequence[Recipe],
        settings: VectorSettings,
        host: Host,
        *,
        known: Known | None = None,
    ) -> None:
        self.num_envs = len(recipes)
        self._known = known
        self.settings = settings
        self._recipes = tuple(recipes)
        self._host = host
        self._is_open = False
        self._failure: Failure | None = None
        self._under_way: set[int] = set()

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Make the environments. Raises RuntimeError if they run already."""
        if not self.is_closed:
            raise RuntimeError("the environments have been started already; close them first")
        self._failure = None
        refuse_import_of_main()
        self._guarded(self._open)
        self._is_open = True
        return self

    def _open(self) -> None:
        said = self._host.open(self._recipes, self.settings, self._stepped_by)
        if self._known is not None:
            self._known.compare(said)
        self._opened_with(said)

    @abstractmethod
    def _opened_with(self, said: list[Any]) -> None:
        """Take what the environments said they are."""

    @property
    def is_closed(self) -> bool:
        """True before `start` and after `close` or a failure."""
        return not self._is_open

    @property
    def pids(self) -> list[int]:
        """The children's process ids, in the order of their environments."""
        return self._host.pids

    @property
    def restarts(self) -> list[int]:
        """How often each environment was replaced after a failure, since the start."""
        return list(self.effort.restarts)

    @property
    def effort(self) -> Effort:
        """What the processes, and waiting for them, have taken since the start."""
        if self.is_closed:
            raise self._closed_error()
        return self._host.effort()

    def close(self) -> None:
        """Close the environments and give everything back. Nothing happens where nothing is open."""
        if self.is_closed:
            return
        try:
            self._host.close()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(self, action: Callable[[], T]) -> T:
        """Do something with the environments; whatever it raises closes them. (An interrupted wait leaves a reply under way:
        nothing but closing is safe.)"""
        try:
            return action()
        except BaseException as error:
            self._fail_with(error)
            raise

    def _fail_with(self, error: BaseException) -> None:
        self._failure = Failure.of(error)
        self._release()

    def _release(self) -> None:
        self._host.release()
        self._is_open = False
        self._under_way = set()

    def _check_ready(self) -> None:
        if self.is_closed:
            raise self._closed_error()
        if self._under_way:
            raise RuntimeError(
                f"environments {sorted(self._under_way)} are being stepped: receive them first"
            )

    def _closed_error(self) -> BaseException:
        if self._failure is None:
            return RuntimeError("the environments are closed; start them first")
        return self._failure.again()

    # -- some at a time --------------------------------------------------------------------------------------------

    def begin_rows(self, op: RowOp, rows: Sequence[tuple[int, Any]]) -> None:
        """Have some environments stepped, whatever the others are doing; `finish_rows` tells which are done.

        Raises RuntimeError for one that is under way already.
        """
        if self.is_closed:
            raise self._closed_error()
        indices = {index for index, _ in rows}
        if indices & self._under_way:
            raise RuntimeError(
                f"environments {sorted(indices & self._under_way)} are being stepped already: receive them first"
            )
        work = RowWork(op, tuple(self._host.packed(op, rows)))
        self._under_way |= indices
        self._guarded(lambda: self._host.begin(work))

    def finish_rows(self, at_least: int = 1, timeout_s: float | None = None) -> dict[int, Any]:
        """Wait until that many environments that were begun are done (or all of them, if they are fewer).

        Gives what each came to, in the order of their ends; fewer, or none, where `timeout_s` was over before.
        """
        if self.is_closed:
            raise self._closed_error()
        if not self._under_way:
            raise RuntimeError("no environment is being stepped: send some first")
        wanted = min(at_least, len(self._under_way))
        found = self._guarded(lambda: self._host.finished(wanted, timeout_s, self._memory()))
        self._under_way -= set(found)
        return found

    def _memory(self) -> Arena | None:
        """The arena that environments are stepped into, if they are."""
        return None

    # -- seeds and attributes --------------------------------------------------------------------------------------

    def set_seed(self, seeds: Sequence[int | None]) -> None:
        """Seed environments without resetting them (a gymnasium environment takes its seed at its next reset)."""
        self._check_ready()
        self._put_seeds(seeds, None)
        self._run(Seed(), call="set_seed")

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """The attribute `name` of each environment (or of those in `indices`), called if it can be; one
        result per environment.

        An exception raised by an environment is raised here, of its own class, with the environment's index
        in a note.
        """
        return self._ask(Request(name, self._chosen(indices), args, tuple(kwargs.items())))

    def call_each(self, name: str, args: Mapping[int, Any]) -> list[Any]:
        """Call a method of each environment in `args` with an argument of its own."""
        return self._ask(Request(name, tuple(args), own_args=tuple(args.values())))

    def get_attr(self, name: str, *, indices: Sequence[int] | None = None) -> list[Any]:
        """The attribute `name` of each environment, methods too as far as they can be sent."""
        return self.call(GET_ATTRIBUTE + name, indices=indices)

    def has_method(self, name: str) -> bool:
        """Whether `name` is something to call in the environments. Raises AttributeError where they lack it."""
        return bool(self.call(IS_CALLABLE + name, indices=[0])[0])

    def set_attr(self, name: str, value: Any, *, indices: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment (or of those in `indices`)."""
        self.call(SET_ATTRIBUTE + name, value, indices=indices)

    def stage(self, starts: Mapping[int, Any]) -> None:
        """Hand environments what their next reset takes beside a seed (see `Session.stage`)."""
        self.call_each(STAGE, starts)

    def _chosen(self, indices: Sequence[int] | None) -> tuple[int, ...]:
        if indices is None:
            return tuple(range(self.num_envs))
        for index in indices:
            if not 0 <= index < self.num_envs:
                raise IndexError(f"there is no environment {index}; indices go from 0 to {self.num_envs - 1}")
        return tuple(indices)

    def _ask(self, request: Request) -> list[Any]:
        self._check_ready()
        answers = self._guarded(lambda: self._host.ask(request))
        results = {result.env_index: result for result in answers}
        for index in request.indices:
            if results[index].error is not None:
                raise _noted(results[index])
        return [results[index].value for index in request.indices]

    # -- shared ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _run(self, command: Simple, *, call: str) -> None: ...

    def _put_seeds(self, seeds: Sequence[int | None] | None, mask: Sequence[bool] | Array | None) -> None:
        control = self._host.control
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        for seed in seeds or ():
            if seed is not None and not 0 <= seed <= MAX_SEED:
                raise ValueError(f"a seed is {seed}; allowed is 0 to {MAX_SEED}")
        control.mask[:] = True if mask is None else np.asarray(mask, dtype=bool)
        control.has_seed[:] = [seed is not None for seed in seeds] if seeds is not None else False
        if seeds is not None:
            control.seeds[:] = [seed or 0 for seed in seeds]


def _noted(result: Result) -> BaseException:
    assert result.error is not None
    assert result.fault is not None
    result.error.add_note(f"raised by {result.fault}\n{result.fault.details}")
    return result.error
