"""What wakes the parent of a crew: an event that the last of several children counts, and the end of a process."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.descriptors import close_all


class Wakeups:
    """Owns the event's descriptor (`event`) and the list of processes whose ends wake."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.event = -1
        try:
            self.event = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll.register(self.event, select.EPOLLIN)
        except BaseException:
            self.close()
            raise

    def look_at(self, child: Child) -> None:
        """From now on the end of this child's process wakes."""
        self._epoll.register(child.pidfd, select.EPOLLIN)

    def look_away_from(self, pidfd: int) -> None:
        """The end of this process wakes no more. To close its descriptor is not enough: forked processes hold it too."""
        with suppress(FileNotFoundError):
            self._epoll.unregister(pidfd)

    def sleep(self, timeout_s: float) -> tuple[bool, set[int]]:
        """Sleep until something wakes, or the time is over. Gives whether the event was counted, and the processes (by
        pidfd) that have ended."""
        ended = {fd for fd, _ in self._epoll.poll(timeout_s)}
        if self.event not in ended:
            return False, ended
        self.take_event()
        ended.discard(self.event)
        return True, ended

    def take_event(self) -> None:
        """Take back the event's count, which is there."""
        os.eventfd_read(self.event)

    def ended(self) -> set[int]:
        """The processes (by pidfd) that have ended by now; the event's count stays."""
        return {fd for fd, _ in self._epoll.poll(0)} - {self.event}

    def close(self) -> None:
        """Give back the descriptors. Allowed twice."""
        self._epoll.close()
        close_all(self.event)
        self.event = -1
