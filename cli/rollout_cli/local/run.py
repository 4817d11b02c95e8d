"""`rolloutctl run`: one job on this machine, from its manifest to its end, and nothing left behind.

Called by `main`. One process hosts the gateway, the reconcile loop and the screen; Redis, workers and the learner are its
children. When a run ends is decided in `outcome`, whether a learner is started again in `restarts`; here both are carried
out. Signals, and the bound on the end, are the matter of `stopping`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from rollout_cli.errors import Exit
from rollout_cli.local.job_file import JobGone
from rollout_cli.local.learner import Learner, LearnerFailed, tail_text
from rollout_cli.local.outcome import (
    COMPLETED_BY_LEARNER,
    Ended,
    LearnerFacts,
    Move,
    next_move,
)
from rollout_cli.local.processes import adopt_orphans, end_descendants, reap_orphans
from rollout_cli.local.report import announcement, print_end
from rollout_cli.local.request import RunRequest, request_of
from rollout_cli.local.run_dir import RunDir, open_run_dir, write_record
from rollout_cli.local.screen import Screen, open_screen
from rollout_cli.local.services import Services, learner_environment, open_services
from rollout_cli.local.stopping import Stop, stopping
from rollout_cli.local.view import View
from rollout_cli.local.watch import Watch, last_lines
from rollout_contract.errors import RolloutError, StreamError
from rollout_contract.messages import EndKind

LOOK_EVERY_S = 0.5
LEARNER_LINES = 8


def command(arguments: argparse.Namespace) -> int:
    """Run a job; the exit codes are those of `errors.Exit`."""
    request = request_of(arguments)
    with stopping() as stop, open_run_dir(request.run_dir, request.job.metadata.name) as run_dir:
        logging.basicConfig(
            filename=run_dir.logs / "run.log",
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        return asyncio.run(_run(request, run_dir, _record_of(arguments), stop))


def _record_of(arguments: argparse.Namespace) -> dict[str, object]:
    """How the run was started; no address of a server, which may hold a password."""
    return {
        "startedAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "manifest": str(arguments.manifest.resolve()),
        "learner": str(arguments.learner.resolve()) if arguments.learner else None,
        "seed": arguments.seed,
        "set": arguments.set,
        "rolloutjob": version("rolloutjob"),
        "python": sys.version.split()[0],
    }


async def _run(request: RunRequest, run_dir: RunDir, record: Mapping[str, object], stop: Stop) -> int:
    """The process around the work: orphans, screen; the last words."""
    adopt_orphans()
    run = _Run(request, run_dir, record, open_screen(), stop)
    reaper = asyncio.create_task(reap_orphans())
    try:
        ended = await _until_stopped(run, stop)
    finally:
        run.screen.close()
        reaper.cancel()
        await end_descendants()
    print_end(run_dir, ended, view=run.view, document=run.document)
    return ended.code


async def _until_stopped(run: _Run, stop: Stop) -> Ended:
    """Do the work, or take everything down when a signal comes: wherever the work is, it is cancelled there."""
    work = asyncio.create_task(run.work())
    asked = asyncio.create_task(stop.attach().wait())
    try:
        await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            run.screen.tell(f"{stop.name}: ending in order; once more: at once")
            work.cancel()
        with suppress(asyncio.CancelledError):
            return await work
    finally:
        asked.cancel()
    return Ended(stop.code)


@dataclass
class _Run:
    """One run and what is known of it at its end."""

    request: RunRequest
    run_dir: RunDir
    record: Mapping[str, object]
    screen: Screen
    stop: Stop
    view: View | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    """The job, as of the newest look."""

    async def work(self) -> Ended:
        """Start everything, follow the job to its end, take everything down."""
        async with open_services(self.request, self.run_dir, tell=self.screen.tell) as services:
            write_record(self.run_dir, self.record)
            for line in announcement(services):
                self.screen.tell(line)
            watch = Watch(
                control=services.control,
                clock=asyncio.get_running_loop().time,
                gateway=services.url,
            )
            learner = self._learner(services, watch)
            task = asyncio.create_task(learner.run()) if learner else None
            try:
                ended = await self._follow(services, watch, learner, task)
                self.stop.begin_end(ended.code)
                return ended
            finally:
                if learner and task:
                    task.cancel()
                    await learner.stop()
                    with suppress(asyncio.CancelledError, LearnerFailed):
                        await task
                self.view = watch.view

    def _learner(self, services: Services, watch: Watch) -> Learner | None:
        if self.request.learner is None:
            return None
        return Learner(
            program=self.request.learner,
            environment={**os.environ, **learner_environment(services)},
            log_file=self.run_dir.logs / "learner.log",
            policy=services.job.spec.failure_policy,
            acked_frames=lambda: watch.acked_frames,
            tell=self.screen.tell,
        )

    async def _follow(
        self, services: Services, watch: Watch, learner: Learner | None, task: asyncio.Task[None] | None
    ) -> Ended:
        """Look at the job, show it, and do what is to be done, until it is over."""
        clock = asyncio.get_running_loop().time
        finished_at: float | None = None
        is_completing = False
        while not self.stop.is_asked:  # a cancellation comes once, and a library may lose it
            if problem := _failure_of(services.tasks):
                return Ended(Exit.FAILED, problem)
            try:
                self.document = services.job_file.read()
                view = await watch.look(self.document, **_shown(learner))
            except JobGone:
                return Ended(Exit.FAILED, "the job was deleted")
            self.screen.show(view)
            conditions = {c.type: c.status for c in view.conditions}
            if finished_at is None and "True" in (conditions.get("Complete"), conditions.get("Failed")):
                finished_at = clock()
            since = clock() - finished_at if finished_at is not None else 0.0
            if learner and conditions.get("Failed") == "True":
                learner.is_last = True
            match next_move(conditions, facts_of(learner, task), finished_for_s=since):
                case Ended() as ended:
                    return ended
                case Move.COMPLETE_JOB if not is_completing:
                    is_completing = await self._complete(services)
            pending = {t for t in (*services.tasks, task) if t is not None and not t.done()}
            await asyncio.wait(pending, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        return Ended(self.stop.code)

    async def _complete(self, services: Services) -> bool:
        """End the job with the frames that it has. False if Redis is away: to be tried again."""
        try:
            await services.control.finish(EndKind.FINISHED, reason=COMPLETED_BY_LEARNER)
        except StreamError:
            return False
        self.screen.tell("the learner has ended: the job is completed with the frames that it has")
        return True


def facts_of(learner: Learner | None, task: asyncio.Task[None] | None) -> LearnerFacts:
    """How the learner stands."""
    if learner is None or task is None:
        return LearnerFacts(is_wanted=False)
    if not task.done():
        return LearnerFacts(is_wanted=True)
    error = task.exception()
    if error is None:
        return LearnerFacts(is_wanted=True, has_ended=True)
    if not isinstance(error, RolloutError):
        raise error
    return LearnerFacts(is_wanted=True, failure=str(error))


def _shown(learner: Learner | None) -> dict[str, Any]:
    """What of the learner is on the screen."""
    if learner is None:
        return {}
    text = tail_text(learner.log_file) if learner.log_file.exists() else ""
    return {
        "learner": learner.state,
        "learner_restarts": learner.history.restarts,
        "learner_lines": tuple(last_lines(text, LEARNER_LINES)),
    }


def _failure_of(tasks: tuple[asyncio.Task[None], ...]) -> str:
    """Why one of the services' tasks ended; empty: all run. What is no error of ours is raised."""
    for task in tasks:
        if not task.done():
            continue
        error = task.exception()
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is not None and not isinstance(error, RolloutError):
            raise error
        return f"{task.get_name()} ended: {error or 'without a reason'}"
    return ""
