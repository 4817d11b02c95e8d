"""Steps a slice of the vector env's environments into the block: the one place where environments are
advanced.

A serial vector env is one stepper over all rows; a child is one over its slice, in another process. Every
frame is one real transition: `next` holds what the step gave (the terminal observation too), the following
root what the policy acts on (after an end: the reset's observation), and root flags are False. A frame limit
is or-ed into `truncated` and never touches `terminated`.

Failures of several environments in one frame are gathered and leave together as `StepFailed`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from rollout_contract.errors import EntrypointError
from rollout_worker.envs.arena import Arena, Block, ControlPage
from rollout_worker.envs.commands import Cut, Step
from rollout_worker.envs.describe import FLAGS, EnvDescription, Key, spelled
from rollout_worker.envs.faults import EnvFault, fault_of
from rollout_worker.envs.layout import EPISODE_LENGTH, EPISODE_RETURN
from rollout_worker.envs.native import Session, action_reader
from rollout_worker.envs.writing import writer_of

Array = np.ndarray[Any, Any]

_NOTHING = object()
"""Stands for the result of a step that has not returned."""


class Doing(IntEnum):
    """What an environment is being asked for right now; second field of a progress word."""

    IDLE = 0
    CONSTRUCTOR = 1
    RESET = 2
    STEP = 3
    CLOSE = 4
    CALL = 5
    SET_SEED = 6


_ENV_BITS = 20
_CALL_BITS = 4


class Progress:
    """Tells whoever watches which environment is busy with what: one word, `tick | doing | row`, before each call."""

    def __init__(self, word: memoryview) -> None:
        self.word = word
        self._tick = 0

    def base(self, doing: Doing) -> int:
        """The word of a new tick for row 0; rows are added to it."""
        self._tick += 1
        return (self._tick << _CALL_BITS | doing) << _ENV_BITS

    def note(self, doing: Doing, row: int) -> None:
        """Say that this row is about to do something."""
        self.word[0] = self.base(doing) + row

    def rest(self) -> None:
        """Say that nothing is being done."""
        self.word[0] = self.base(Doing.IDLE)


def read_progress(word: int) -> tuple[Doing, int]:
    """What a progress word says: the call, and the row within the stepper."""
    return Doing(word >> _ENV_BITS & (1 << _CALL_BITS) - 1), word & (1 << _ENV_BITS) - 1


@dataclass(frozen=True, slots=True)
class StepRules:
    """What a stepper does beside stepping.

    `max_frames_per_traj` truncates a trajectory at that many frames (None: never). `check_finite` refuses NaN
    and infinity in float observations and rewards. `seed_globals` seeds Python's, numpy's and (where loaded)
    torch's global generators with the first environment's seed, for environments that draw from those: right
    in a child, a side effect in a user's own process.
    """

    max_frames_per_traj: int | None = None
    check_finite: bool = True
    seed_globals: bool = False


class StepFailed(Exception):
    """Environments failed; `faults` names each, `cause` is the first one's exception. Never leaves the vector env."""

    def __init__(self, faults: Sequence[EnvFault], cause: BaseException | None = None) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)
        self.cause = cause


class _Faults:
    """Gathers what fails in one call; rows are counted within the stepper."""

    def __init__(self, first_env: int) -> None:
        self.found: list[EnvFault] = []
        self._first_env = first_env
        self._cause: BaseException | None = None

    def add(self, error: BaseException, row: int, call: str) -> None:
        """One environment raised."""
        self._cause = self._cause or error
        self.found.append(fault_of(error, env_index=self._first_env + row, pid=os.getpid(), call=call))

    def raise_if_any(self) -> None:
        """Raise StepFailed for all of them."""
        if self.found:
            raise StepFailed(self.found, self._cause)


class _Rows:
    """The stepper's rows of one block, by what they are for."""

    def __init__(self, block: Block, rows: slice) -> None:
        layout = block.layout
        self.arrays: dict[Key, Array] = {key: array[rows] for key, array in block.arrays.items()}
        self.root = [self.arrays[key] for key in layout.root_keys]
        self.frames: dict[int, _Frame] = {}
        if block.index < 0:
            return
        self.next = [self.arrays["next", *key] for key in layout.root_keys]
        self.reward = self.arrays["next", *layout.reward_keys[0]]
        self.by_flag = {
            flag: [self.arrays["next", *group, flag] for group in layout.done_groups] for flag in FLAGS
        }
        self.returns, self.lengths = self.arrays[EPISODE_RETURN], self.arrays[EPISODE_LENGTH]
        self.counts = (self.arrays.get(("step_count",)), self.arrays.get(("next", "step_count")))
        floats = [*layout.root_keys, *layout.reward_keys]
        self.floats = [
            (key, self.arrays["next", *key]) for key in floats if self.arrays["next", *key].dtype.kind in "fc"
        ]

    def floats_of(self, start: int, stop: int) -> list[tuple[Key, Array]]:
        """The leaves that could hold NaN or infinity, over some frames."""
        return [(key, array[:, start:stop]) for key, array in self.floats]


class _Frame:
    """One frame's views of a block, made once: what is written in a step."""

    def __init__(self, rows: _Rows, step: int, roots: list[Array]) -> None:
        self.step = step
        self.next = [array[:, step] for array in rows.next]
        self.roots = roots
        self.rewards = rows.reward.reshape(*rows.reward.shape[:2], -1)[:, step]
        self.reward = self.rewards[:, 0]
        self.by_flag = {flag: [array[:, step] for array in arrays] for flag, arrays in rows.by_flag.items()}
        self.returns, self.lengths = rows.returns[:, step], rows.lengths[:, step]
        self.counts = [None if array is None else array[:, step] for array in rows.counts]
        self.floats = [(key, array[:, step]) for key, array in rows.floats]
        self.has_ends = False

    def forget_ends(self) -> None:
        """Take back what an earlier use of this frame said about ends. `begin` does so for a whole block."""
        for arrays in self.by_flag.values():
            for array in arrays:
                array[...] = False
        self.lengths[...] = 0
        self.has_ends = False


class Stepper:
    """Environments `first_env`, `first_env + 1`, … of a vector env, and their rows of its arena."""

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        first_env: int,
        control: ControlPage,
        progress: Progress,
        rules: StepRules,
    ) -> None:
        self.sessions = list(sessions)
        self.first_env = first_env
        self.rules = rules
        self._progress = progress
        self._slice = slice(first_env, first_env + len(self.sessions))
        self._seeds, self._has_seed = control.seeds[self._slice], control.has_seed[self._slice]
        self._mask = control.mask[self._slice]
        description: EnvDescription = self.sessions[0].description
        self._write = writer_of(description.observation, description.paths)
        self._read_actions = action_reader(description)
        self._nested = _nested_leaves(description)
        self._has_root_reward = len(description.reward[0][0]) == 1
        self._steps = [session.step for session in self.sessions]
        self._returns = np.zeros(len(self.sessions), dtype=np.float64)
        self._frames = np.zeros(len(self.sessions), dtype=np.int64)

    def map(self, arena: Arena) -> None:
        """Write into this arena from now on."""
        self._rows = [_Rows(block, self._slice) for block in arena.blocks]
        self._carry = _Rows(arena.carry, self._slice)
        self._num_steps = arena.plan.layout.num_steps

    def reset(self) -> None:
        """Reset the environments that the mask marks, with the control page's seeds; observations go to the carry."""
        rows = [index for index in range(len(self.sessions)) if self._mask[index]]
        seeds = [
            int(self._seeds[index]) if self._has_seed[index] else None for index in range(len(self.sessions))
        ]
        if self.rules.seed_globals and rows and seeds[rows[0]] is not None:
            seed_globals(int(self._seeds[rows[0]]))
        self._reset_rows(rows, [array[:, 0] for array in self._carry.root], seeds)

    def seed(self) -> None:
        """Give the environments their seeds; they act on them at once or at their next reset."""
        if self.rules.seed_globals and self._has_seed[0]:
            seed_globals(int(self._seeds[0]))
        faults = _Faults(self.first_env)
        for index in np.flatnonzero(self._has_seed).tolist():
            self._progress.note(Doing.SET_SEED, index)
            try:
                self.sessions[index].seed(int(self._seeds[index]))
            except Exception as error:
                faults.add(error, index, "set_seed")
        faults.raise_if_any()

    def step(self, command: Step) -> None:
        """Advance as the command says."""
        rows = self._rows[command.block]
        active = np.flatnonzero(self._mask).tolist() if command.masked else None
        for step in range(command.start, command.stop):
            self._advance(rows, step, active, autoreset=command.autoreset)
        if self.rules.check_finite:
            self._refuse_non_finite(rows, command.start, command.stop, active)

    def cut(self, command: Cut) -> None:
        """Mark running trajectories as truncated at a frame, then reset everything with new seeds."""
        rows = self._rows[command.block]
        running = ~rows.by_flag["done"][0][:, command.step, 0]
        for flag in ("truncated", "done"):
            for flags in rows.by_flag[flag]:
                flags[running, command.step] = True
        self._mask[:] = True
        self.reset()

    def close(self) -> None:
        """Close every environment. All are tried; failures leave together."""
        faults = _Faults(self.first_env)
        for index, session in enumerate(self.sessions):
            self._progress.note(Doing.CLOSE, index)
            try:
                session.close()
            except Exception as error:
                faults.add(error, index, "close")
        faults.raise_if_any()

    def _advance(self, rows: _Rows, step: int, active: list[int] | None, *, autoreset: bool) -> None:
        frame = self._frame(rows, step)
        if frame.has_ends:
            frame.forget_ends()
        before, after = frame.counts
        if before is not None:
            before[...] = self._frames
        ended = self._call_steps(rows, frame, active)
        reward = frame.reward if self._has_root_reward else frame.rewards.mean(axis=1)
        if active is None:
            self._frames += 1
            self._returns += reward
        else:
            self._frames[active] += 1
            self._returns[active] += reward[active]
        if after is not None:
            after[...] = self._frames
        if self.rules.max_frames_per_traj is not None:
            self._add_truncated(ended, self.rules.max_frames_per_traj, active)
        if ended:
            self._note_ends(frame, ended)
        if autoreset:
            self._hand_on(rows, frame, active)
            if ended:
                self._reset_rows(ended, frame.roots, None)
        else:
            moved: Any = slice(None) if active is None else active
            for carry, following in zip(self._carry.root, frame.next, strict=True):
                carry[moved, 0] = following[moved]

    def _add_truncated(
        self, ended: dict[int, tuple[bool, bool]], limit: int, active: list[int] | None
    ) -> None:
        for index in np.flatnonzero(self._frames >= limit).tolist():
            if active is None or index in active:
                ended[index] = (ended.get(index, (False, False))[0], True)

    def _hand_on(self, rows: _Rows, frame: _Frame, active: list[int] | None) -> None:
        """Make the following roots: what was observed last."""
        if active is None:
            for root, following in zip(frame.roots, frame.next, strict=True):
                root[...] = following
            return
        if frame.step or self._num_steps > 1:
            for root, current in zip(frame.roots, rows.root, strict=True):
                root[...] = current[:, frame.step]  # rows that are not stepped stay where they are
        for root, following in zip(frame.roots, frame.next, strict=True):
            root[active] = following[active]

    def _call_steps(
        self, rows: _Rows, frame: _Frame, active: list[int] | None
    ) -> dict[int, tuple[bool, bool]]:
        """Step the environments, write observations and rewards; gives the flags of those that ended."""
        word, steps, write, nested = self._progress.word, self._steps, self._write, self._nested
        actions, next_rows, step = self._read_actions(rows.arrays, frame.step), frame.next, frame.step
        rewards = frame.reward if self._has_root_reward else np.empty(len(steps))
        base = self._progress.base(Doing.STEP)
        ended: dict[int, tuple[bool, bool]] = {}
        faults = _Faults(self.first_env)
        todo = iter(range(len(steps)) if active is None else active)
        result: Any = _NOTHING
        while True:
            index = -1
            try:
                for index in todo:
                    word[0] = base + index
                    result = _NOTHING
                    result = steps[index](actions[index])
                    observation, reward, terminated, truncated, _ = result
                    write(next_rows, index, observation)
                    if nested:
                        self._write_nested(rows, step, index, observation)
                    rewards[index] = float(reward)
                    if terminated or truncated:
                        ended[index] = (bool(terminated), bool(truncated))
                break
            except (Exception, SystemExit) as error:
                faults.add(_explained(error, result), index, "step")
        faults.raise_if_any()
        return ended

    def _write_nested(self, rows: _Rows, step: int, index: int, observation: Any) -> None:
        for key in self._nested:
            value = observation
            for name in key:
                value = value[name]
            rows.arrays["next", *key][index, step] = value

    def _note_ends(self, frame: _Frame, ended: dict[int, tuple[bool, bool]]) -> None:
        frame.has_ends = True
        for index, (terminated, truncated) in ended.items():
            for flag, value in (("terminated", terminated), ("truncated", truncated), ("done", True)):
                if value:
                    for flags in frame.by_flag[flag]:
                        flags[index] = True
            frame.returns[index] = self._returns[index]
            frame.lengths[index] = self._frames[index]

    def _frame(self, rows: _Rows, step: int) -> _Frame:
        frame = rows.frames.get(step)
        if frame is None:
            roots = rows.root if step + 1 < self._num_steps else self._carry.root
            at = step + 1 if step + 1 < self._num_steps else 0
            frame = rows.frames[step] = _Frame(rows, step, [array[:, at] for array in roots])
        return frame

    def _reset_rows(self, indices: Iterable[int], roots: list[Array], seeds: list[int | None] | None) -> None:
        faults = _Faults(self.first_env)
        for index in indices:
            self._progress.note(Doing.RESET, index)
            try:
                observation = self.sessions[index].reset(None if seeds is None else seeds[index])
                self._write(roots, index, observation)
                if self.rules.check_finite:
                    self._refuse_non_finite_root(roots, index)
            except (Exception, SystemExit) as error:
                faults.add(error, index, "reset")
            self._frames[index] = 0
            self._returns[index] = 0.0
        faults.raise_if_any()

    def _refuse_non_finite(self, rows: _Rows, start: int, stop: int, active: list[int] | None) -> None:
        chunks = rows.frames[start].floats if stop == start + 1 else rows.floats_of(start, stop)
        for key, chunk in chunks:
            if not all_finite(chunk if active is None else chunk[active]):
                bad = ~np.isfinite(chunk)
                index = next(row for row in (active or range(len(chunk))) if bad[row].any())
                faults = _Faults(self.first_env)
                faults.add(_non_finite(("next", *key), chunk[index][bad[index]].ravel()[0]), index, "step")
                faults.raise_if_any()

    def _refuse_non_finite_root(self, roots: list[Array], index: int) -> None:
        description = self.sessions[0].description
        for (key, _), root in zip(description.observation, roots, strict=True):
            if root.dtype.kind in "fc" and not all_finite(root[index]):
                row = np.asarray(root[index]).ravel()
                raise _non_finite(key, row[~np.isfinite(row)][0])


def _nested_leaves(description: EnvDescription) -> tuple[Key, ...]:
    """Rewards and flags below the root, which an environment of ours hands out with its observation."""
    return tuple(key for key, _ in (*description.reward, *description.done) if len(key) > 1)


def _explained(error: BaseException, result: Any) -> BaseException:
    """An error of user code as it is; one that arose here, from what `step` gave, in words that say what was expected."""
    if result is _NOTHING or error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return error
    kinds = (
        ", ".join(type(each).__name__ for each in result)
        if isinstance(result, tuple)
        else type(result).__name__
    )
    return TypeError(
        f"step gave ({kinds}); expected are observation, reward (one number), terminated, truncated (one boolean each), "
        f"info: {error}"
    )


_SMALL_BYTES = 4096


def all_finite(values: Array) -> bool:
    """Whether an array holds neither NaN nor infinity. For small arrays a search in bytes is quicker than a reduction."""
    finite = np.isfinite(values)
    return b"\0" not in finite.tobytes() if finite.size <= _SMALL_BYTES else bool(finite.all())


def _non_finite(key: Key, value: Any) -> ValueError:
    return ValueError(
        f"{spelled(key)} holds {value}: only finite numbers are stored. Use check_finite=False to allow it."
    )


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, numpy and, where it is loaded, torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def built(open_one: Callable[[int], Session], indices: range, progress: Progress) -> list[Session]:
    """Make the sessions of these environments; all are tried, and where some fail the others are closed again."""
    sessions: list[Session] = []
    faults = _Faults(indices.start)
    for row, env_index in enumerate(indices):
        progress.note(Doing.CONSTRUCTOR, row)
        try:
            sessions.append(open_one(env_index))
        except (Exception, SystemExit) as error:
            faults.add(error, row, "constructor")
            if isinstance(error, EntrypointError):
                break
    if faults.found:
        for session in sessions:
            _close_quietly(session)
    faults.raise_if_any()
    return sessions


def _close_quietly(session: Session) -> None:
    try:
        session.close()
    except Exception as error:
        print(f"closing an environment failed: {type(error).__name__}: {error}", file=sys.stderr)
