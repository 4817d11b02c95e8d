"""Jobs of all namespaces that a caller may see, a page at a time.

Whoever may list jobs in the whole cluster gets them from one list. Others get those of the namespaces that the gateway was
told to look through (`ApiSettings.namespaces`) and in which they may list; who may in none is told to name one. Called by
the list route, the page and the metrics.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from dataclasses import dataclass

from rollout_api.errors import Kind, Problem
from rollout_api.gateway import RESOURCE, Gateway
from rollout_api.identity import Action, Identity
from rollout_api.store import JobPage, LabelSelector
from rollout_contract.spec import RolloutJob


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list over several namespaces goes on: in this one, with the store's token."""

    namespace: str
    token: str = ""

    @classmethod
    def parse(cls, text: str) -> Place:
        """From `str()` of one. Problem if it is none."""
        try:
            namespace, token = json.loads(base64.urlsafe_b64decode(text.encode()))
            if not (isinstance(namespace, str) and isinstance(token, str)):
                raise ValueError(text)
        except (ValueError, TypeError, binascii.Error) as error:
            raise Problem(Kind.INVALID, "query.continue: it is no token of this list.") from error
        return cls(namespace, token)

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(json.dumps([self.namespace, self.token]).encode()).decode()


async def list_visible(
    gateway: Gateway, identity: Identity, *, selector: LabelSelector, limit: int, continue_token: str = ""
) -> JobPage:
    """At most `limit` jobs. 403 if the caller may list in no namespace that is known."""
    store = gateway.store.acting_for(identity)
    if await gateway.auth.may(identity, Action("list", RESOURCE)):
        return await store.list(None, selector=selector, limit=limit, continue_token=continue_token)
    namespaces = await _visible_namespaces(gateway, identity)
    place = Place.parse(continue_token) if continue_token else Place("")
    jobs: list[RolloutJob] = []
    unknown: list[str] = []
    for namespace in (n for n in namespaces if n >= place.namespace):
        token = place.token if namespace == place.namespace else ""
        if len(jobs) == limit:
            return JobPage(jobs, str(Place(namespace)), unknown)
        page = await store.list(namespace, selector=selector, limit=limit - len(jobs), continue_token=token)
        jobs += page.jobs
        unknown += page.unknown
        if page.continue_token:
            return JobPage(jobs, str(Place(namespace, page.continue_token)), unknown)
    return JobPage(jobs, "", unknown)


async def _visible_namespaces(gateway: Gateway, identity: Identity) -> list[str]:
    known = sorted(gateway.settings.namespaces)
    allowed = await asyncio.gather(
        *(gateway.auth.may(identity, Action("list", RESOURCE, namespace)) for namespace in known)
    )
    found = [namespace for namespace, is_allowed in zip(known, allowed, strict=True) if is_allowed]
    if not found:
        raise Problem(
            Kind.FORBIDDEN,
            f"You may not list {RESOURCE} in all namespaces. Name one: /v1/namespaces/NAMESPACE/{RESOURCE}",
        )
    return found
