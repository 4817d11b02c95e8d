"""Waits for children: until enough of them have replied, or for a moment, at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.descriptors import readable
from rollout_worker.envs.crew.links import Links
from rollout_worker.envs.crew.losses import CrewFailed, EndCrew, Losses
from rollout_worker.envs.crew.silence import WATCH_S, Watch
from rollout_worker.envs.lookout import Lookout

GATHER_LOOK_S = 0.02
"""Children that are waited for one by one do not all signal: look at their words this often."""


class Waiter:
    """The waits of one crew. Who dies or falls silent meanwhile is handed to `losses`."""

    def __init__(self, links: Links) -> None:
        self.losses: Losses = EndCrew()
        self._links, self._replies, self._wakeups = links, links.replies, links.wakeups
        self._lookout = Lookout(links.settings.look_s)
        self._watch = self._new_watch(links.settings.step_timeout_s)
        self._next_look = 0.0

    def begin(self, child: Child) -> None:
        """This child is busy from now on, whatever the others are doing."""
        self._watch.begin(child)

    def wait(
        self,
        awaited: Sequence[Child],
        *,
        limit_s: float,
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Wait until `count` of these children (None: all) have replied, at most for `timeout_s`.

        A failure, a death, or a silence of `limit_s` ends in CrewFailed, or in a new process.
        """
        replies, number = self._replies, self._links.orders.number
        wanted = len(awaited) if count is None else count
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._lookout.sees(lambda: replies.num_done(awaited, number) >= wanted):
            return
        watch: Watch | None = None
        while replies.num_done(awaited, number) < wanted:
            self.losses.go_on(awaited)
            left = WATCH_S if deadline is None else min(WATCH_S, deadline - time.monotonic())
            if left < 0:
                return
            is_called, ended = self._wakeups.sleep(left)
            if replies.num_done(awaited, number) >= wanted:
                return
            if ended:
                self.losses.take_ends(ended, awaited)
            elif is_called:
                self._look_for_failures()
            else:
                watch = watch or self._new_watch(limit_s)
                self._take_silence(watch, awaited)

    def look_after(self, busy: Sequence[Child]) -> None:
        """Find children that died or are stuck while others, which do well, keep the caller from waiting."""
        if ended := self._wakeups.ended():
            self.losses.take_ends(ended, busy)
        self.losses.go_on(busy)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + WATCH_S
            self._take_silence(self._watch, busy)

    def gather(self, limit_s: float) -> list[Child]:
        """Give all children the time to reply; gives those that neither did nor died."""
        deadline = time.monotonic() + limit_s
        pending = self._links.children
        event = self._wakeups.event
        while True:
            pending = [
                child for child in pending if not self._replies.is_answered(child) and not child.is_dead()
            ]
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                return pending
            if event in readable([event, *(child.pidfd for child in pending)], min(left, GATHER_LOOK_S)):
                self._wakeups.take_event()

    def _new_watch(self, limit_s: float) -> Watch:
        return Watch(self._links.control, limit_s, self._links.settings.start_timeout_s)

    def _look_for_failures(self) -> None:
        if any(map(self._replies.has_failed, self._links.children)):
            raise CrewFailed

    def _take_silence(self, watch: Watch, children: Sequence[Child]) -> None:
        silent = watch.look(child for child in children if not self._replies.is_done(child))
        if not silent:
            return
        call, silence_of = self._links.orders.call, self._links.findings.silence_of
        self.losses.take([(child, silence_of(child, call, watch.limit_of(child))) for child in silent])
        for child in silent:
            watch.begin(child)
