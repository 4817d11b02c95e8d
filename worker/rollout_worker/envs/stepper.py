"""Steps a slice of the vector env's environments into the block: the one place where environments are
advanced.

A serial vector env is one stepper over all rows; a child is one over its slice, in another process. Every
frame is one real transition: `next` holds what the step gave (the terminal observation too), the following
root what the policy acts on (after an end: the reset's observation), and root flags are False. A frame limit
is or-ed into `truncated` and never touches `terminated`.

Failures of several environments in one frame are gathered and leave together as `StepFailed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rollout_worker.envs.arena import Arena, ControlPage
from rollout_worker.envs.commands import Cut, Step
from rollout_worker.envs.describe import EnvDescription, Key
from rollout_worker.envs.frames import BlockRows, Frame
from rollout_worker.envs.native import Session, action_reader
from rollout_worker.envs.progress import Doing, Progress
from rollout_worker.envs.step_checks import NOTHING, explained, first_non_finite, refuse_non_finite_root
from rollout_worker.envs.stepper_base import Faults, SessionStepper, StepRules, seed_globals
from rollout_worker.envs.writing import writer_of

Array = np.ndarray[Any, Any]


class Stepper(SessionStepper[Session]):
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
        super().__init__(sessions, first_env=first_env, control=control, progress=progress, rules=rules)
        description: EnvDescription = self.sessions[0].description
        self._write = writer_of(description.observation, description.paths)
        self._read_actions = action_reader(description)
        self._nested = _nested_leaves(description)
        self._root_keys = [key for key, _ in description.observation]
        self._has_root_reward = len(description.reward[0][0]) == 1
        self._steps = [session.step for session in self.sessions]
        self._returns = np.zeros(len(self.sessions), dtype=np.float64)
        self._frames = np.zeros(len(self.sessions), dtype=np.int64)

    @property
    def tallies(self) -> tuple[Array, Array]:
        """Return and number of frames of each environment's running episode."""
        return self._returns, self._frames

    @tallies.setter
    def tallies(self, values: tuple[Array, Array]) -> None:
        self._returns[...], self._frames[...] = values

    def map(self, arena: Arena) -> None:
        """Write into this arena from now on."""
        self._rows = [BlockRows(block, self._slice) for block in arena.blocks]
        self._carry = BlockRows(arena.carry, self._slice)

    def reset(self) -> None:
        """Reset the environments that the mask marks, with the control page's seeds; observations go to the carry."""
        rows = [index for index in range(len(self.sessions)) if self._mask[index]]
        seeds = [
            int(self._seeds[index]) if self._has_seed[index] else None for index in range(len(self.sessions))
        ]
        if self.restarts is not None:
            for index in rows:
                if (seed := seeds[index]) is not None:
                    self.restarts.note_seed(index, seed)
            self._lost[rows] = False
        if self.rules.seed_globals and rows and seeds[rows[0]] is not None:
            seed_globals(int(self._seeds[rows[0]]))
        self._reset_rows(rows, [array[:, 0] for array in self._carry.root], seeds)

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

    def _advance(self, rows: BlockRows, step: int, active: list[int] | None, *, autoreset: bool) -> None:
        frame = rows.frame_at(step, self._carry)
        self._progress.at_frame(step)
        if frame.has_ends:
            frame.forget_ends()
        before, after = frame.counts
        if before is not None:
            before[...] = self._frames
        if frame.valid is not None:
            frame.valid[...] = True
        ended, lost = self._call_steps(rows, frame, active)
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
            frame.note_ends(ended, self._returns, self._frames)
        if lost:
            frame.lengths[lost] = 0  # a trajectory that broke off is not an episode
            self._frames[lost], self._returns[lost] = 0, 0.0
        if autoreset:
            self._hand_on(rows, frame, active)
            if ended:
                self._reset_rows(ended, frame.roots, None)
        else:
            self._make_ready(lost)
            moved: Any = slice(None) if active is None else active
            for carry, following in zip(self._carry.root, frame.next, strict=True):
                carry[moved, 0] = following[moved]

    def _add_truncated(
        self, ended: dict[int, tuple[bool, bool]], limit: int, active: list[int] | None
    ) -> None:
        for index in np.flatnonzero(self._frames >= limit).tolist():
            if active is None or index in active:
                ended[index] = (ended.get(index, (False, False))[0], True)

    def _hand_on(self, rows: BlockRows, frame: Frame, active: list[int] | None) -> None:
        """Make the following roots: what was observed last."""
        if active is None:
            for root, following in zip(frame.roots, frame.next, strict=True):
                root[...] = following
            return
        if frame.step or rows.num_steps > 1:
            for root, current in zip(frame.roots, rows.root, strict=True):
                root[...] = current[:, frame.step]  # rows that are not stepped stay where they are
        for root, following in zip(frame.roots, frame.next, strict=True):
            root[active] = following[active]

    def _call_steps(
        self, rows: BlockRows, frame: Frame, active: list[int] | None
    ) -> tuple[dict[int, tuple[bool, bool]], list[int]]:
        """Step the environments, write observations and rewards; gives the flags of those that ended, and those that
        failed and were restarted."""
        word, steps, write, nested = self._progress.word, self._steps, self._write, self._nested
        actions, next_rows, step = self._read_actions(rows.arrays, frame.step), frame.next, frame.step
        rewards = frame.reward if self._has_root_reward else np.empty(len(steps))
        base = self._progress.base(Doing.STEP)
        ended: dict[int, tuple[bool, bool]] = {}
        failures: list[tuple[int, BaseException]] = []
        rows_to_step: Sequence[int] = range(len(steps)) if active is None else active
        gone = [index for index in rows_to_step if self._lost[index]] if self.restarts is not None else []
        todo = iter([index for index in rows_to_step if index not in gone] if gone else rows_to_step)
        result: Any = NOTHING
        while True:
            index = -1
            try:
                for index in todo:
                    word[0] = base + index
                    result = NOTHING
                    result = steps[index](actions[index])
                    observation, reward, terminated, truncated, _ = result
                    write(next_rows, index, observation)
                    if nested:
                        self._write_nested(rows, step, index, observation)
                    try:
                        rewards[index] = float(reward)
                    except TypeError:
                        if np.size(reward) != 1:
                            raise
                        rewards[index] = float(np.asarray(reward).item())  # an array of one element
                    if terminated or truncated:
                        ended[index] = (bool(terminated), bool(truncated))
                break
            except (Exception, SystemExit) as error:
                failures.append((index, explained(error, result)))
        if failures:
            self._reseat_all(failures)
        lost = [*gone, *(index for index, _ in failures)]
        if lost:
            self._break_off(rows, frame, lost, rewards)
            ended.update((index, (False, True)) for index in lost)
        return ended, lost

    def _reseat_all(self, failures: list[tuple[int, BaseException]]) -> None:
        """Put new environments in the place of those that failed in a step."""
        faults = Faults(self.first_env)
        for index, error in failures:
            self._reseat(index, error, "step", faults, had_good_steps=bool(self._frames[index]))
        faults.raise_if_any()

    def _reseat(
        self, index: int, error: BaseException, call: str, faults: Faults, *, had_good_steps: bool
    ) -> bool:
        """A new environment for a row. False, with a fault, where the rules do not want that, or it does not help."""
        refused = error
        if self.restarts is not None:
            found = self.restarts.refusal(index, error, had_good_steps=had_good_steps)
            if found is None:
                try:
                    made = self.restarts.instead_of(self.sessions[index], index, error)
                except (Exception, SystemExit) as final:
                    faults.add(final, index, "constructor")
                    return False
                self.sessions[index] = made
                self._steps[index] = made.step
                return True
            refused = found
        faults.add(refused, index, call)
        return False

    def _break_off(self, rows: BlockRows, frame: Frame, lost: list[int], rewards: Array) -> None:
        """Write the frame of environments that were not stepped to its end: it repeats the root."""
        for following, root, carry in zip(frame.next, rows.root, self._carry.root, strict=True):
            is_carried = (
                frame.step == 0 and following.dtype == object
            )  # what is no tensor is not kept in the block
            following[lost] = carry[lost, 0] if is_carried else root[lost, frame.step]
        for key in self._nested:
            rows.arrays["next", *key][lost, frame.step] = 0
        rewards[lost] = 0.0
        if frame.valid is not None:
            frame.valid[lost] = False
        self._lost[lost] = False

    def _make_ready(self, renewed: list[int]) -> None:
        """Reset new environments whose first root nobody asked for, so that they can be stepped whatever comes next."""
        faults = Faults(self.first_env)
        for index in renewed:
            self._progress.note(Doing.RESET, index)
            try:
                self.sessions[index].reset(None)
            except (Exception, SystemExit) as error:
                faults.add(error, index, "reset")
        faults.raise_if_any()

    def _write_nested(self, rows: BlockRows, step: int, index: int, observation: Any) -> None:
        for key in self._nested:
            value = observation
            for name in key:
                value = value[name]
            rows.arrays["next", *key][index, step] = value

    def _reset_rows(self, indices: Iterable[int], roots: list[Array], seeds: list[int | None] | None) -> None:
        faults = Faults(self.first_env)
        for index in indices:
            self._progress.note(Doing.RESET, index)
            try:
                self._reset_row(roots, index, None if seeds is None else seeds[index])
            except (Exception, SystemExit) as error:
                if self._reseat(index, error, "reset", faults, had_good_steps=False):
                    try:
                        self._reset_row(roots, index, None)
                    except (Exception, SystemExit) as final:
                        faults.add(final, index, "reset")
            self._frames[index] = 0
            self._returns[index] = 0.0
        faults.raise_if_any()

    def _reset_row(self, roots: list[Array], index: int, seed: int | None) -> None:
        self._write(roots, index, self.sessions[index].reset(seed))
        if self.rules.check_finite:
            refuse_non_finite_root(zip(self._root_keys, roots, strict=True), index)

    def _refuse_non_finite(self, rows: BlockRows, start: int, stop: int, active: list[int] | None) -> None:
        chunks = rows.frames[start].floats if stop == start + 1 else rows.floats_of(start, stop)
        found = first_non_finite(chunks, active)
        if found is not None:
            index, error = found
            faults = Faults(self.first_env)
            faults.add(error, index, "step")
            faults.raise_if_any()


def _nested_leaves(description: EnvDescription) -> tuple[Key, ...]:
    """Rewards and flags below the root, which an environment of ours hands out with its observation."""
    return tuple(key for key, _ in (*description.reward, *description.done) if len(key) > 1)
