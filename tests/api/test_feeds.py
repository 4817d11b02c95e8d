"""Whose rights a feed watches with, and what becomes of a client that may no longer see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from rollout_api.feeds import Feed, Feeds, Subscriber
from rollout_api.settings import Limits
from rollout_api.store import Forbidden, JobChange
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_stream.aio import Control


class FakeStore:
    """A caller's view: it may be forbidden, and says who watches."""

    def __init__(self, job: RolloutJob, *, is_allowed: bool = True) -> None:
        self.job = job
        self.is_allowed = is_allowed
        self.watching = 0

    async def watch(self, namespace: str, name: str) -> AsyncIterator[JobChange]:
        if not self.is_allowed:
            raise Forbidden("no")
        self.watching += 1
        try:
            yield JobChange(self.job)
            await asyncio.Event().wait()
        finally:
            self.watching -= 1


class Words:
    """Descriptions that say nothing."""

    def conditions(self, job: RolloutJob) -> object:
        return {}

    async def progress(self, job: RolloutJob) -> object:
        return {}


@pytest.fixture
def a_job(manifest: dict[str, Any]) -> RolloutJob:
    return parse_manifest({**manifest, "metadata": {"name": "cartpole", "uid": "0" * 32}})


@pytest.fixture
async def feeds() -> AsyncIterator[Feeds]:
    found = Feeds(describe=Words(), max_clients=10, queue_size=8)
    yield found
    await found.aclose()


def subscribed(feeds: Feeds, store: Any) -> Any:
    return feeds.subscribed(store, "default", "cartpole", None)


async def test_the_watch_changes_hands(feeds: Feeds, a_job: RolloutJob, until: Any) -> None:
    first, second = FakeStore(a_job), FakeStore(a_job)
    async with subscribed(feeds, second) as staying:
        async with subscribed(feeds, first):
            await until(lambda: (first.watching, second.watching) == (0, 1))
        async with subscribed(feeds, first) as other:
            feed: Feed = next(iter(feeds._feeds.values()))
            feed.remove(staying)
            await until(lambda: (first.watching, second.watching) == (1, 0))
            assert isinstance(other, Subscriber)


async def test_who_may_not_watch_is_sent_away_and_the_others_go_on(
    feeds: Feeds, a_job: RolloutJob, until: Any
) -> None:
    refused, allowed = FakeStore(a_job, is_allowed=False), FakeStore(a_job)
    async with subscribed(feeds, refused) as first, subscribed(feeds, allowed) as second:
        async with asyncio.timeout(60):
            assert await first.get() is None
            event = await second.get()
        assert event is not None
        assert event.name == "conditions"
        assert allowed.watching == 1


async def test_a_watch_does_not_outlive_its_feed(feeds: Feeds, a_job: RolloutJob, until: Any) -> None:
    store = FakeStore(a_job)
    async with subscribed(feeds, store):
        await until(lambda: store.watching == 1)
    await feeds.aclose()
    assert store.watching == 0


class TestRightsThatAreTakenAway:
    """An open stream ends once its client may no longer read it."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(recheck_s=0.05)

    async def test_the_stream_ends(
        self, app: FastAPI, base_url: str, token: str, path: str, control: Control
    ) -> None:
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=60) as caller,
            caller.stream("GET", path + "/events") as answer,
        ):
            lines = answer.aiter_lines()
            async for line in lines:
                if line.startswith("event: "):
                    break

            async def never(identity: Any, action: Any) -> bool:
                return False

            app.state.gateway.auth.may = never
            async with asyncio.timeout(60):
                async for _ in lines:
                    pass
