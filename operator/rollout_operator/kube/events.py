"""Events about jobs, for people: what repeats is counted instead of repeated, and a job that talks too much is hushed.

The API server keeps events for an hour; what is remembered here is forgotten after as long. Best effort by nature: an
event that is not taken is logged and dropped.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from rollout_contract import names
from rollout_contract.status import clip
from rollout_operator.cluster import ClusterError, Event, JobKey
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.resources import EVENTS, Document

log = logging.getLogger(__name__)

MAX_NOTE_BYTES = 1000
REMEMBERED = 4096
FORGOTTEN_AFTER_S = 3600.0
COUNT_EVERY_S = 60.0
"""A repetition is written at most this often."""
BURST = 25
"""Events that a job may publish at once; one more every REFILL_S."""
REFILL_S = 20.0

_Identity = tuple[str, Event]
"""Whose event, without its numbers: `6400 of 6400 frames wait` is the same news as `6420 of 6400`."""
_NUMBER = re.compile(r"\d+")
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class _Series:
    """One event and how often it was seen."""

    name: str
    first: float
    count: int = 1
    written: float = 0.0


@dataclass(slots=True)
class _Allowance:
    """How much a job may still say."""

    left: float
    since: float

    def take(self, now: float) -> bool:
        """Use one, if there is one."""
        self.left = min(float(BURST), self.left + (now - self.since) / REFILL_S)
        self.since = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class EventRecorder:
    """Publishes events about jobs. `instance` names this process in them."""

    def __init__(
        self, api: KubernetesApi, *, instance: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._instance = instance
        self._clock = clock
        self._series: OrderedDict[_Identity, _Series] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self.dropped = 0

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """Publish. Never raises ClusterError."""
        for event in events:
            try:
                await self._emit(key, event, job_uid)
            except ClusterError as error:
                self.dropped += 1
                log.info("%s: an event was not taken: %s", key, error)

    async def _emit(self, key: JobKey, event: Event, job_uid: str) -> None:
        now = self._clock()
        identity = (job_uid, replace(event, message=_NUMBER.sub("#", event.message)))
        series = self._series.get(identity)
        if series is not None and now - series.first <= FORGOTTEN_AFTER_S:
            await self._repeat(key, series, now)
            return
        if not self._allowance_of(job_uid, now).take(now):
            self.dropped += 1
            return
        name = f"{key.name}.{uuid.uuid4().hex[:16]}"
        await self._api.call(EVENTS.create(key.namespace, self._document(key, event, job_uid, name)))
        _put(self._series, identity, _Series(name, now, written=now))

    async def _repeat(self, key: JobKey, series: _Series, now: float) -> None:
        series.count += 1
        if now - series.written < COUNT_EVERY_S:
            return
        series.written = now
        change = {"series": {"count": series.count, "lastObservedTime": _now()}}
        try:
            await self._api.call(EVENTS.merge(key.namespace, series.name, change))
        except ApiError as error:
            if not error.is_gone:
                raise

    def _allowance_of(self, job_uid: str, now: float) -> _Allowance:
        found = self._allowances.get(job_uid)
        return found or _put(self._allowances, job_uid, _Allowance(float(BURST), now))

    def _document(self, key: JobKey, event: Event, job_uid: str, name: str) -> Document:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": key.namespace, "name": name},
            "eventTime": _now(),
            "type": event.kind.value,
            "reason": event.reason,
            "action": event.reason,
            "note": clip(event.message, MAX_NOTE_BYTES),
            "regarding": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": key.namespace,
                "name": key.name,
                "uid": job_uid,
            },
            "reportingController": names.OPERATOR_NAME,
            "reportingInstance": self._instance[:128],
        }


def _put(table: OrderedDict[Key, Value], key: Key, value: Value) -> Value:
    """Remember the newest REMEMBERED."""
    table[key] = value
    if len(table) > REMEMBERED:
        table.popitem(last=False)
    return value


def _now() -> str:
    """As a MicroTime: the API server refuses one without a fraction."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
