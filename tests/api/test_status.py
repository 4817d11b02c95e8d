"""How a job is, over the interface: both halves of the status, workers, seed, episodes, health, metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from rollout_api.app import create_app
from rollout_api.auth import TokenAuth
from rollout_api.live import Away, LiveCache, Look
from rollout_api.settings import Limits
from rollout_cli.local.job_file import JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_contract.errors import StreamUnavailable
from rollout_contract.seeds import seed_of
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_stream.aio import AsyncSession, Control

CONDITION = {
    "type": "Ready",
    "status": "False",
    "reason": "WorkersNotReady",
    "message": "default-1: <b>not yet</b>",
    "lastTransitionTime": "2026-01-01T10:00:00Z",
    "observedGeneration": 1,
}


async def add_episodes(control: Control, count: int) -> None:
    """Finished episodes of return and length 1, 2, … as the append script keeps them."""
    records = [
        json.dumps(
            {
                "return": float(i),
                "length": i,
                "policy_version": i // 10,
                "worker": "default/0",
                "frames": 64 * i,
            }
        )
        for i in range(1, count + 1)
    ]
    await control.session.client.execute_command("RPUSH", control._keys.episodes, *records)
    await control.session.client.execute_command("HSET", control._keys.counters, "episodes", count)


async def test_both_halves_of_the_status(
    client: httpx2.AsyncClient,
    path: str,
    control: Control,
    job_file: JobFile,
    job: RolloutJob,
    send_beat: Any,
) -> None:
    job_file.write_status(
        {"state": "Pending", "observedGeneration": 1, "readyWorkers": "1/2", "conditions": [CONDITION]}
    )
    await send_beat(control, index=0, frames=640, frames_per_second=100.5, policy_version=3)
    await send_beat(control, index=1, frames=64, frames_per_second=50.0, policy_version=2, seed_epoch=0)
    await send_beat(control, index=2, state="Finished", frames_per_second=9.0)
    await control.session.client.execute_command(
        "HSET",
        control._keys.counters,
        "frames",
        25_000,
        "batches",
        11,
        "unacked_frames",
        128,
        "unacked_bytes",
        4096,
    )
    await add_episodes(control, 300)
    answer = (await client.get(path + "/status")).json()
    assert (answer["namespace"], answer["name"], answer["uid"]) == ("default", "cartpole", job.metadata.uid)
    assert (answer["state"], answer["readyWorkers"], answer["suspend"]) == ("Pending", "1/2", False)
    assert answer["conditions"] == [CONDITION]
    assert answer["liveError"] is None
    live = answer["live"]
    ages = [
        live["progress"].pop("ageSeconds"),
        live["stream"].pop("ageSeconds"),
        live["seed"].pop("ageSeconds"),
    ]
    assert all(0 <= age < 60 for age in ages)
    assert live["progress"] == {
        "frames": 25_000,
        "totalFrames": 100_000,
        "percent": 25.0,
        "framesPerSecond": 150.5,
        "batches": 11,
        "episodes": 300,
        "workers": 2,
    }
    assert live["stream"] == {
        "unackedFrames": 128,
        "unackedBytes": 4096,
        "maxUnackedFrames": None,
        "ackedFrames": 0,
        "droppedFrames": 0,
        "duplicates": 0,
        "badEntries": 0,
        "groups": ["learner"],
    }
    assert live["weights"] == {
        "latestVersion": 0,
        "minLoadedVersion": 2,
        "maxLoadedVersion": 3,
        "lag": 0,
        "ageSeconds": None,
    }
    assert live["seed"] == {"seed": 7, "epoch": 0, "minWorkerEpoch": 0}
    assert live["recentReturn"] == sum(range(201, 301)) / 100


async def test_a_job_that_has_not_begun(client: httpx2.AsyncClient, path: str) -> None:
    answer = (await client.get(path + "/status")).json()
    assert answer["live"] is None
    assert answer["liveError"]["reason"] == "StateLost"
    assert "not been started" in answer["liveError"]["detail"]
    for end in ("/workers", "/seed", "/episodes"):
        problem = await client.get(path + end)
        assert problem.status_code == 503
        assert problem.json()["type"] == "urn:rolloutjob:problem:unavailable"


async def is_unready(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/readyz")).status_code == 503


async def test_without_redis_the_first_half_is_there(
    store: LocalStore, job: RolloutJob, own_redis: Any, token: str, until: Any
) -> None:
    async with AsyncSession.connect(own_redis.url, password=own_redis.password, patience_s=0.2) as stream:
        app = create_app(store=store, stream=stream, auth=TokenAuth(token))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers
        ) as client:
            path = "/v1/namespaces/default/rolloutjobs/cartpole"
            assert (await client.get("/readyz")).status_code == 200
            own_redis.stop()
            answer = await client.get(path + "/status")
            assert answer.status_code == 200
            assert answer.json()["live"] is None
            assert answer.json()["liveError"]["reason"] == "StreamUnavailable"
            assert str(own_redis.port) not in answer.text
            for end in ("/workers", "/seed", "/episodes", "/weights", "/weights/1"):
                problem = await client.get(path + end)
                assert problem.status_code == 503, end
                assert str(own_redis.port) not in problem.text
                assert problem.headers["retry-after"]
            assert (await client.put(path + "/seed", json={"seed": 1})).status_code == 503
            await until(lambda: is_unready(client))  # the answer may be a second old
            assert (await client.get("/healthz")).json()["status"] == "ok"
            assert (await client.get("/")).status_code == 200
            assert "rollout_gateway_live_reads_total" in (await client.get("/metrics")).text


async def test_one_row_per_worker(
    client: httpx2.AsyncClient, path: str, control: Control, send_beat: Any
) -> None:
    await send_beat(control, index=10, policy_version=1)
    await send_beat(
        control, index=9, attempt=2, node="n1", frames=5, frames_per_second=1.26, last_error="boom", pid=3
    )
    stale = json.dumps({"group": "default", "index": 0, "attempt": 0, "state": "Collecting", "seen": 1.0})
    await control.session.client.execute_command("HSET", control._keys.workers, "default/0", stale)
    rows = (await client.get(path + "/workers")).json()["items"]
    assert [(row["index"], row["isLost"]) for row in rows] == [(0, True), (9, False), (10, False)]
    row = rows[1]
    assert 0 <= row.pop("lastSeenSeconds") < 60
    assert row.pop("startedAt").endswith("Z")
    assert row == {
        "group": "default",
        "index": 9,
        "attempt": 2,
        "node": "n1",
        "state": "Collecting",
        "isLost": False,
        "frames": 5,
        "framesPerSecond": 1.3,
        "policyVersion": 0,
        "rejectedVersion": 0,
        "seedEpoch": 0,
        "sequence": 0,
        "lastError": "boom",
    }


@pytest.mark.probe("P-25")
async def test_a_new_seed_raises_the_epoch(client: httpx2.AsyncClient, path: str, control: Control) -> None:
    first = await client.get(path + "/seed")
    assert (first.json(), first.headers["etag"]) == ({"seed": 7, "epoch": 0}, '"0"')
    assert (await client.get(path + "/status")).json()["live"]["seed"]["epoch"] == 0
    answer = await client.put(path + "/seed", json={"seed": 11}, headers={"if-match": '"0"'})
    assert (answer.status_code, answer.json(), answer.headers["etag"]) == (
        200,
        {"seed": 11, "epoch": 1},
        '"1"',
    )
    state = await control.seed()
    assert (state.seed, state.epoch) == (11, 1)
    live = (await client.get(path + "/status")).json()["live"]  # at once, not a second later
    assert (live["seed"]["seed"], live["seed"]["epoch"]) == (11, 1)
    assert (await client.put(path + "/seed", json={"seed": 11})).json()["epoch"] == 2


@pytest.mark.probe("P-53")
async def test_two_seeds_on_the_same_epoch(client: httpx2.AsyncClient, path: str, control: Control) -> None:
    calls = [client.put(path + "/seed", json={"seed": seed}, headers={"if-match": '"0"'}) for seed in (1, 2)]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [200, 412]
    won = next(a.json() for a in answers if a.status_code == 200)
    lost = next(a.json() for a in answers if a.status_code == 412)
    assert (lost["epoch"], lost["seed"]) == (1, won["seed"])
    assert (await client.get(path + "/seed")).json() == won


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"seed": -1}', 422),
        (b'{"seed": 9223372036854775808}', 422),
        (b'{"seed": 1.5}', 422),
        (b'{"seed": 1.0}', 422),
        (b'{"seed": "1"}', 422),
        (b'{"seed": true}', 422),
        (b'{"seed": null}', 422),
        (b'{"seed": 1, "epoch": 2}', 422),
        (b"{}", 422),
        (b"[]", 422),
        (b"", 400),
        (b"{", 400),
        (b'{"seed": 1, "seed": 2}', 400),
        (b'{"seed": NaN}', 400),
        (b"\xff\xfe", 400),
        (b'{"seed": ' + b"9" * 10_000 + b"}", 400),
        (b"[" * 100_000, 400),
    ],
)
async def test_what_is_no_seed(
    client: httpx2.AsyncClient, path: str, control: Control, content: bytes, status: int
) -> None:
    answer = await client.put(path + "/seed", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await control.seed()).epoch == 0


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"content-type": "application/x-www-form-urlencoded"}, id="what curl says"),
        pytest.param({"content-type": "text/plain"}, id="plain text"),
        pytest.param({"content-type": "application/json; charset=utf-16"}, id="another charset"),
        pytest.param({"content-type": "application/json", "content-encoding": "gzip"}, id="encoded"),
    ],
)
async def test_a_seed_that_is_said_to_be_no_json(
    client: httpx2.AsyncClient, path: str, control: Control, headers: dict[str, str]
) -> None:
    answer = await client.put(path + "/seed", content=b'{"seed": 1}', headers=headers)
    assert answer.status_code == 415
    assert "Send Content-Type: application/json" in answer.json()["detail"]
    assert (await control.seed()).epoch == 0


async def test_seeds_of_environments_on_request(
    client: httpx2.AsyncClient, path: str, control: Control, send_beat: Any
) -> None:
    await send_beat(control, index=1, attempt=2)
    await send_beat(control, index=0)
    answer = (await client.get(path + "/seed?envSeeds=true")).json()
    expected = [
        {"group": "default", "worker": w, "attempt": a, "envIndex": e, "seed": seed_of(7, 0, "default", e, a)}
        for w, a, first in ((0, 0, 0), (1, 2, 4))
        for e in range(first, first + 4)
    ]
    assert answer["envSeeds"] == expected


async def test_the_spread_and_the_curve_of_episodes(
    client: httpx2.AsyncClient, path: str, control: Control
) -> None:
    empty = (await client.get(path + "/episodes")).json()
    assert empty == {"total": 0, "count": 0, "returns": None, "lengths": None, "curve": []}
    await add_episodes(control, 101)
    answer = (await client.get(path + "/episodes", params={"last": 101, "points": 4})).json()
    assert (answer["total"], answer["count"]) == (101, 101)
    spread = {
        "mean": 51.0,
        "min": 1.0,
        "p10": 11.0,
        "p25": 26.0,
        "p50": 51.0,
        "p75": 76.0,
        "p90": 91.0,
        "max": 101.0,
    }
    assert answer["returns"] == pytest.approx(spread)
    assert answer["lengths"] == pytest.approx(spread)
    assert [point["episodes"] for point in answer["curve"]] == [26, 26, 26, 23]
    assert answer["curve"][0] == {
        "frames": 64 * 26,
        "episodes": 26,
        "meanReturn": 13.5,
        "meanLength": 13.5,
        "policyVersion": 2,
    }
    last = (await client.get(path + "/episodes", params={"last": 1})).json()
    assert (last["count"], last["returns"]["mean"]) == (1, 101.0)
    for query in ("last=0", "points=0", "points=1001", "last=x"):
        assert (await client.get(f"{path}/episodes?{query}")).status_code == 422


async def test_metrics_of_gateway_and_job(client: httpx2.AsyncClient, path: str, control: Control) -> None:
    await client.get(path + "/status")
    await client.get("/v1/rolloutjobs/none")
    await client.request("BREW", path)
    text = (await client.get("/metrics")).text
    labels = 'method="GET",route="/v1/namespaces/{namespace}/rolloutjobs/{name}/status",status="200"'
    assert f"rollout_gateway_requests_total{{{labels}}} 1.0" in text
    assert 'rollout_frames_total{job="cartpole",namespace="default"} 0.0' in text
    assert "rollout_gateway_event_clients 0.0" in text
    assert "BREW" not in text


class TestLiveCache:
    """One read per job and second, whoever asks."""

    @pytest.fixture
    def looked_at(self, manifest: dict[str, Any]) -> RolloutJob:
        return parse_manifest({**manifest, "metadata": {"name": "cartpole", "uid": "0" * 32}})

    async def test_callers_at_once_share_a_read(self, looked_at: RolloutJob) -> None:
        reads, go = [], asyncio.Event()

        async def read(job: RolloutJob) -> Any:
            reads.append(job)
            await go.wait()
            return len(reads)

        now = [0.0]
        cache = LiveCache(read, ttl_s=1.0, timeout_s=60.0, clock=lambda: now[0])
        callers = [asyncio.create_task(cache.get(looked_at)) for _ in range(50)]
        await asyncio.sleep(0)
        callers[0].cancel()  # the first one began the read: the others still get it
        await asyncio.sleep(0)
        go.set()
        looks = await asyncio.gather(*callers[1:])
        assert looks == [Look(1, 0.0)] * 49  # type: ignore[arg-type]
        now[0] = 0.9
        assert await cache.get(looked_at) == Look(1, 0.9)  # type: ignore[arg-type]
        now[0] = 1.0
        assert await cache.get(looked_at) == Look(2, 0.0)  # type: ignore[arg-type]
        cache.forget(looked_at.ref)
        assert await cache.get(looked_at) == Look(3, 0.0)  # type: ignore[arg-type]

    async def test_a_server_that_is_away_is_not_asked_by_everybody(self, looked_at: RolloutJob) -> None:
        reads = []

        async def read(job: RolloutJob) -> Any:
            reads.append(job)
            raise StreamUnavailable("Redis at 192.0.2.1:6379 cannot be reached")

        cache = LiveCache(read, ttl_s=1.0, timeout_s=60.0, clock=lambda: 0.0)
        for _ in range(3):
            away = await cache.get(looked_at)
            assert isinstance(away, Away)
            assert "192.0.2.1" not in away.error.detail
        assert len(reads) == 1

    async def test_a_read_that_hangs_is_given_up(self, looked_at: RolloutJob) -> None:
        async def read(job: RolloutJob) -> Any:
            await asyncio.Event().wait()

        cache = LiveCache(read, ttl_s=1.0, timeout_s=0.01)
        assert isinstance(await cache.get(looked_at), Away)
        await cache.aclose()

    async def test_jobs_that_nobody_asks_for_are_forgotten(self, looked_at: RolloutJob) -> None:
        now = [0.0]

        async def read(job: RolloutJob) -> Any:
            return job

        cache = LiveCache(read, ttl_s=1.0, timeout_s=60.0, clock=lambda: now[0])
        for i in range(100):
            other = looked_at.metadata.model_copy(update={"name": f"job-{i}"})
            await cache.get(looked_at.model_copy(update={"metadata": other}))
        now[0] = 100.0
        await cache.get(looked_at)
        assert len(cache._entries) == 1


async def test_strangers_cannot_make_the_servers_work(
    app: FastAPI, stranger: httpx2.AsyncClient, control: Control
) -> None:
    async def calls() -> int:
        answer = await control.session.client.execute_command("INFO", "commandstats")
        text = answer if isinstance(answer, str) else answer.decode()
        return int(text.partition("cmdstat_info:calls=")[2].partition(",")[0] or 0)

    app.state.gateway.readiness._clock = lambda: 5.0
    before = await calls()
    answers = await asyncio.gather(*(stranger.get("/readyz") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert await calls() - before == 2  # one by the check, one by the look above


async def test_an_empty_store_is_ready(stranger: httpx2.AsyncClient) -> None:
    assert (await stranger.get("/readyz")).json() == {
        "status": "ok",
        "checks": {"store": "ok", "stream": "ok"},
    }


class TestTime:
    """A request has a bounded time."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(request_s=0.05)

    async def test_a_request_that_takes_too_long_is_given_up(
        self, app: FastAPI, client: httpx2.AsyncClient, path: str
    ) -> None:
        async def slow(namespace: str, name: str) -> RolloutJob:
            await asyncio.Event().wait()
            raise AssertionError

        app.state.gateway.store.get = slow
        answer = await client.get(path)
        assert answer.status_code == 504
        assert answer.json()["type"] == "urn:rolloutjob:problem:too-slow"
