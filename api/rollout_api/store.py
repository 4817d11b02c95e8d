"""Where jobs are kept: the protocol that every store speaks, its errors, and the label selector.

The routes call it; what implements it is composed from outside: the local run's `job.json`
(`rollout_cli.local.job_store`), or the Kubernetes API (`kube.store`). A store keeps and hands out whole `RolloutJob`s; it
checks nothing of their meaning (the routes do, with the contract) and knows nothing of Redis.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rollout_api.identity import Identity
from rollout_contract.errors import RolloutError
from rollout_contract.spec import RolloutJob


class StoreError(RolloutError):
    """A store cannot do what was asked. The text is meant for the caller: no hosts, no paths, no secrets in it."""


class NotFound(StoreError):
    """There is no job of that name (any more)."""


class AlreadyExists(StoreError):
    """There is a job of that name, or the store is full: the local run holds one job."""


class Conflict(StoreError):
    """The job was changed meanwhile: its resource version is not the one that the caller named."""


class Unsupported(StoreError):
    """This store cannot do that at all."""


class Refused(StoreError):
    """The store's own rules refuse it: an admission check, a quota, a field that it does not know."""


class Unknown(StoreError):
    """The job holds what this version of the gateway does not know: it was written by a newer one."""


class PageExpired(StoreError):
    """The token of the next page is too old: list from the beginning."""


class NotKnown(StoreError):
    """The caller's token is not valid (any more)."""


class Forbidden(StoreError):
    """The caller may not do this."""


class StoreUnavailable(StoreError):
    """The store does not answer, or has too much to do; the same call may succeed later."""

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs in order of (namespace, name). `continue_token` asks for the next page; empty: there is none.

    `unknown` names jobs (`namespace/name`) that are there, but hold what this version of the gateway does not know.
    """

    jobs: Sequence[RolloutJob]
    continue_token: str = ""
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JobChange:
    """What a watch tells: the job as it is now. `is_deleted`: it is gone, and nothing more comes."""

    job: RolloutJob
    is_deleted: bool = False


@runtime_checkable
class JobStore(Protocol):
    """Jobs by (namespace, name). Every job handed out has `metadata.namespace`, `uid`, `resource_version`,
    `generation` and `creation_timestamp` set; `resource_version` changes with every write of spec, metadata or status.

    Every call but `check` is made for a caller: see `acting_for`. NotKnown or Forbidden where the caller may not;
    SpecError, with every fault, where the store finds some in a job; StoreUnavailable.
    """

    def acting_for(self, caller: Identity) -> JobStore:
        """The same store with this caller's rights; a store that knows no rights gives itself."""
        ...

    async def list(
        self, namespace: str | None, *, selector: LabelSelector, limit: int, continue_token: str = ""
    ) -> JobPage:
        """At most `limit` jobs of a namespace (None: of all) whose labels match. Unsupported: an unknown token;
        PageExpired.
        """
        ...

    async def get(self, namespace: str, name: str) -> RolloutJob:
        """One job. NotFound."""
        ...

    async def create(self, job: RolloutJob, *, dry_run: bool = False) -> RolloutJob:
        """Keep a new job and give it its identity; its status is left out. `dry_run`: everything but keeping it.
        AlreadyExists.
        """
        ...

    async def patch(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        resource_version: str,
        dry_run: bool = False,
    ) -> RolloutJob:
        """Apply a JSON merge patch (`merge_patch.merged`) to spec and metadata of the job in its YAML shape, if it
        still has this resource version. The caller has checked that the result is a valid job. The generation rises
        if the spec changed. NotFound, Conflict.
        """
        ...

    async def delete(self, namespace: str, name: str, *, resource_version: str | None = None) -> RolloutJob:
        """Ask for the job's end; what runs of it is ended by whoever reconciles it. NotFound, Conflict, Unsupported."""
        ...

    def watch(self, namespace: str, name: str) -> AsyncIterator[JobChange]:
        """The job as it is now, then each change, until it is deleted. The iterator is closed by `aclose()`, also
        when its task is cancelled. NotFound at the first step; StoreUnavailable when it breaks off; NotKnown, Forbidden.
        """
        ...

    async def check(self) -> None:
        """Return if the store answers; StoreUnavailable with a reason otherwise. Takes at most a second or two."""
        ...


_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"
_LABEL_VALUE = rf"({_LABEL_NAME})?"
_EQUALITY = re.compile(rf"(?P<key>{_LABEL_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_LABEL_VALUE})")
_MEMBERSHIP = re.compile(rf"(?P<key>{_LABEL_KEY})\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)")
_EXISTENCE = re.compile(rf"(?P<absent>!?)\s*(?P<key>{_LABEL_KEY})")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^()]*\))")

MAX_SELECTOR = 1024
"""Characters; longer than any selector that a person writes."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One part of a selector: the label's value is (not) one of `values`; None stands for "no such label"."""

    key: str
    values: frozenset[str | None]
    is_in: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels fulfil it."""
        return (labels.get(self.key) in self.values) == self.is_in


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A Kubernetes label selector: `text` for a store that asks a server, `matches` for one that looks itself."""

    text: str = ""
    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """From `a=b,c!=d,e in (f,g),h notin (i),j,!k`. ValueError that names the part which cannot be read."""
        if len(text) > MAX_SELECTOR:
            raise ValueError(f"a label selector has at most {MAX_SELECTOR} characters, not {len(text)}")
        if not text.strip():
            return cls()
        return cls(text, tuple(_requirement(part.strip()) for part in _COMMA_OUTSIDE_BRACKETS.split(text)))

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether a job with these labels (None: none) is selected."""
        return all(requirement.matches(labels or {}) for requirement in self.requirements)


def _requirement(part: str) -> Requirement:
    if match := _EQUALITY.fullmatch(part):
        return Requirement(match["key"], frozenset({match["value"]}), match["operator"] != "!=")
    if match := _MEMBERSHIP.fullmatch(part):
        values = [value.strip() for value in match["values"].split(",")]
        if all(re.fullmatch(_LABEL_VALUE, value) for value in values):
            return Requirement(match["key"], frozenset(values), match["operator"] == "in")
    if match := _EXISTENCE.fullmatch(part):
        return Requirement(match["key"], frozenset({None}), bool(match["absent"]))
    raise ValueError(
        f"{part!r} is no part of a label selector: write key=value, key!=value, key in (a,b), key or !key"
    )
