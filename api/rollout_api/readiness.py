"""Whether what the gateway needs answers: the store of jobs, and Redis. Asked at most once a second, whoever asks.

The readiness route needs no token, so it must not let a stranger make work for the servers behind it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from rollout_api.store import JobStore, NotFound
from rollout_contract.errors import RolloutError
from rollout_stream.aio import AsyncSession, check_server

logger = logging.getLogger(__name__)

CHECK_S: Final = 2.0
TTL_S: Final = 1.0
OK: Final = "ok"


class Readiness:
    """The checks, and what they last said."""

    def __init__(
        self,
        store: JobStore,
        stream: Callable[[], AsyncSession],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._stream = stream
        self.is_ending = False
        """Set once the program was asked to end: what comes now should go to another."""
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checks: Mapping[str, str] = {}

    async def checks(self) -> Mapping[str, str]:
        """What was asked, and `ok` or what is wrong in words that tell a stranger nothing."""
        async with self._lock:
            if self._clock() - self._checked_at >= TTL_S:
                store, stream = await asyncio.gather(
                    self._checked("store", self._store.check()),
                    self._checked("stream", self._check_stream()),
                )
                self._checks = {"store": store, "stream": stream}
                self._checked_at = self._clock()
            ending = {"gateway": "is ending"} if self.is_ending else {}
            return {**self._checks, **ending}

    async def _check_stream(self) -> None:
        await check_server(self._stream())

    async def _checked(self, what: str, check: Coroutine[Any, Any, object]) -> str:
        was = self._checks.get(what, OK)
        try:
            async with asyncio.timeout(CHECK_S):
                await check
        except TimeoutError:
            found, reason = f"no answer within {CHECK_S:g} s", f"no answer within {CHECK_S:g} s"
        except NotFound:
            return OK  # a store that says that it is empty has answered
        except RolloutError as error:
            found, reason = "does not answer", str(error)
        else:
            return OK
        # once, not with each probe
        logger.log(logging.WARNING if was == OK else logging.DEBUG, "not ready: %s: %s", what, reason)
        return found
