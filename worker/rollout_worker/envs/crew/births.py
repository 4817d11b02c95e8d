"""Starts the processes of a crew, one for each share of the environments: the first, and those that take their places."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe

from rollout_worker.envs.child import ChildSetup, run
from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.descriptors import close_all
from rollout_worker.envs.crew.settings import CrewSettings, shares
from rollout_worker.envs.factory import Entrypoint, Recipe
from rollout_worker.envs.launch import PROCESS_PREFIX, Descriptor, Launcher
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.transfer import CountedConnection


@dataclass(frozen=True, slots=True)
class Share:
    """What all children of a crew are told of their environments."""

    recipes: Sequence[Recipe]
    rules: StepRules
    stepped_by: SteppedBy
    first_env_index: int = 0


class Births:
    """Makes children of one crew. `control_fd` and `done_fd` are what all of them share with it."""

    def __init__(self, share: Share, settings: CrewSettings, *, control_fd: int, done_fd: int) -> None:
        self._share, self._settings = share, settings
        self._control_fd, self._done_fd = control_fd, done_fd
        self._indices = shares(len(share.recipes), settings.num_processes)

    def step_by(self, stepped_by: SteppedBy) -> None:
        """Children that are made from now on step their environments like that."""
        self._share = replace(self._share, stepped_by=stepped_by)

    def planned(self) -> list[Child]:
        """A child for each share, without processes."""
        return [Child(position, indices) for position, indices in enumerate(self._indices)]

    def give(self, child: Child, crew: Sequence[Child]) -> None:
        """Start a child's process. What it holds then is in the child, whatever is raised."""
        launcher = self._launcher()
        ours, theirs = Pipe(duplex=True)
        child.conn = CountedConnection(ours, child.traffic)
        child.wake = os.eventfd(0, os.EFD_CLOEXEC)
        child.is_forked_here = self._settings.start_method != "forkserver"
        held = -1
        try:
            if launcher.needs_lifeline:
                held, child.lifeline = os.pipe2(os.O_CLOEXEC)
            lifelines = tuple(each.lifeline for each in crew if each.lifeline >= 0)
            setup = ChildSetup(
                position=child.position,
                num_processes=self._settings.num_processes,
                num_envs=len(self._share.recipes),
                indices=child.indices,
                recipes=tuple(self._share.recipes[child.indices.start : child.indices.stop]),
                first_env_index=self._share.first_env_index,
                stepped_by=self._share.stepped_by,
                rules=self._share.rules,
                num_threads=self._settings.num_threads,
                look_s=self._settings.look_s,
                parent_pid=os.getpid(),
                lifeline=Descriptor(held) if held >= 0 else None,
                parents_lifelines=lifelines if launcher.is_inherited else (),
                control=Descriptor(self._control_fd),
                wake=Descriptor(child.wake),
                done=Descriptor(self._done_fd),
                conn=theirs,
            )
            name = f"{PROCESS_PREFIX}-{child.indices.start}..{child.indices.stop - 1}"
            child.process = launcher.start(run, setup, name=name)
        finally:
            theirs.close()
            close_all(held)
        child.pidfd = os.pidfd_open(child.pid)

    def _launcher(self) -> Launcher:
        settings = self._settings
        return Launcher(
            settings.start_method,
            imports_main=not all(isinstance(recipe, Entrypoint) for recipe in self._share.recipes),
            daemon=settings.daemon,
            num_threads=settings.num_threads,
        )
