"""The gateway on a socket: events, uploads that are cut off, clients that are slow, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI

from rollout_api.app import create_app
from rollout_api.auth import TokenAuth
from rollout_api.serve import bind, serving
from rollout_api.settings import ApiSettings, Limits
from rollout_cli.local.job_file import JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import AsyncSession, Control

DEADLINE_S = 60.0
"""For whatever must come: it costs time only where it does not."""


@dataclass
class Event:
    """One event as a client sees it."""

    id: str
    name: str
    data: Any


async def events_of(answer: httpx2.Response) -> AsyncIterator[Event]:
    """The events of a stream; comments and `retry` are passed over."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line == "":
            if "event" in fields:
                yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def first(events: AsyncIterator[Event], name: str, passed: list[Event] | None = None) -> Event:
    """The next event of this name; those before it go to `passed`."""
    async with asyncio.timeout(DEADLINE_S):
        async for event in events:
            if event.name == name:
                return event
            if passed is not None:
                passed.append(event)
    raise AssertionError(f"the stream ended without {name}")


@pytest.fixture
async def caller(base_url: str, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client on the socket."""
    async with httpx2.AsyncClient(
        base_url=base_url, headers={"authorization": f"Bearer {token}"}, timeout=DEADLINE_S
    ) as client:
        yield client


async def test_events_begin_with_how_things_are_and_go_on(
    caller: httpx2.AsyncClient, path: str, control: Control, job_file: JobFile
) -> None:
    async with caller.stream("GET", path + "/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer)
        conditions = await first(events, "conditions")
        assert conditions.data["conditions"] == []
        assert set(conditions.data) >= {"state", "generation", "suspend", "readyWorkers"}
        progress = await first(events, "progress")
        assert progress.data["live"]["progress"]["frames"] == 0
        job_file.write_status({"state": "Running", "conditions": []})
        passed: list[Event] = []
        changed = await first(events, "conditions", passed)
        assert changed.data["state"] == "Running"
        assert len(passed) <= 1  # `progress` comes each second: conditions are told as soon as they change
        again = await first(events, "progress")
        assert int(again.id.partition("-")[2]) > int(progress.id.partition("-")[2])


async def test_events_say_the_same_as_the_status(
    caller: httpx2.AsyncClient, path: str, control: Control, job_file: JobFile
) -> None:
    condition = {"type": "Ready", "status": "True", "reason": "AllReady", "message": ""}
    condition |= {"lastTransitionTime": "2026-01-01T10:00:00Z", "observedGeneration": 1}
    failure = {"group": "default", "worker": 0, "attempt": 0, "exitCode": 1, "message": "boom"}
    job_file.write_status({"state": "Running", "conditions": [condition], "lastFailure": failure})
    status = (await caller.get(path + "/status")).json()
    async with caller.stream("GET", path + "/events") as answer:
        event = await first(events_of(answer), "conditions")
    assert event.data == {key: value for key, value in status.items() if key not in ("live", "liveError")}


async def test_a_client_that_comes_again_gets_what_it_missed(
    app: FastAPI, caller: httpx2.AsyncClient, path: str, control: Control, job_file: JobFile, until: Any
) -> None:
    async with caller.stream("GET", path + "/events") as answer:
        seen = await first(events_of(answer), "conditions")
    (feed,) = app.state.gateway.feeds._feeds.values()
    for number, state in enumerate(("Pending", "Running", "Degraded"), start=2):
        job_file.write_status({"state": state, "conditions": []})
        await until(lambda number=number: len(feed._remembered) == number)  # each write is seen by itself
    async with caller.stream("GET", path + "/events", headers={"last-event-id": seen.id}) as answer:
        events = events_of(answer)
        states = [(await first(events, "conditions")).data["state"] for _ in range(3)]
    assert states == ["Pending", "Running", "Degraded"]
    async with caller.stream("GET", path + "/events", headers={"last-event-id": "unknown-3"}) as answer:
        assert (await first(events_of(answer), "conditions")).data["state"] == "Degraded"


async def test_the_stream_ends_with_the_job(
    caller: httpx2.AsyncClient, path: str, control: Control, job_file: JobFile
) -> None:
    async with caller.stream("GET", path + "/events") as answer:
        events = events_of(answer)
        await first(events, "conditions")
        job_file.delete()
        deleted = await first(events, "deleted")
        assert deleted.data == {"namespace": "default", "name": "cartpole"}
        async with asyncio.timeout(DEADLINE_S):
            assert [event async for event in events] == []


async def test_without_redis_events_say_so(
    store: LocalStore, job: RolloutJob, path: str, own_redis: Any, token: str
) -> None:
    async with AsyncSession.connect(own_redis.url, password=own_redis.password, patience_s=0.1) as stream:
        app = create_app(store=store, stream=stream, auth=TokenAuth(token))
        own_redis.stop()
        async with (
            serving(app, bind("127.0.0.1", 0), grace_s=1.0) as url,
            httpx2.AsyncClient(
                base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=DEADLINE_S
            ) as caller,
            caller.stream("GET", path + "/events") as answer,
        ):
            progress = await first(events_of(answer), "progress")
    assert progress.data["live"] is None
    assert progress.data["liveError"]["reason"] == "StreamUnavailable"


async def test_redis_is_read_once_whatever_the_number_of_clients(
    app: FastAPI, caller: httpx2.AsyncClient, path: str, control: Control, until: Any
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        answers = [await stack.enter_async_context(caller.stream("GET", path + "/events")) for _ in range(20)]
        feeds = [events_of(answer) for answer in answers]
        for events in feeds:
            await first(events, "progress")
        loop = asyncio.get_running_loop()
        before, started = reads_of(app), loop.time()
        for _ in range(2):
            for events in feeds:
                await first(events, "progress")
        assert reads_of(app) - before <= loop.time() - started + 2  # one a second
        metrics = (await caller.get("/metrics")).text
        assert "rollout_gateway_event_clients 20.0" in metrics
    await until(lambda: app.state.gateway.feeds.num_clients == 0)


def reads_of(app: FastAPI) -> float:
    return float(app.state.gateway.metrics.live_reads.labels("ok")._value.get())


class TestSlowClients:
    """Who takes nothing is dropped; the others do not notice."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(event_queue=4, send_idle_s=0.5, max_event_clients=2)

    async def test_a_slow_client_is_dropped(
        self,
        app: FastAPI,
        base_url: str,
        caller: httpx2.AsyncClient,
        path: str,
        token: str,
        control: Control,
        job_file: JobFile,
        until: Any,
    ) -> None:
        address = urlsplit(base_url)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        with slow:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, (address.hostname, address.port))
            request = (
                f"GET {path}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
            await loop.sock_sendall(slow, request.encode())
            feeds = app.state.gateway.feeds
            await until(lambda: feeds.num_clients == 1)
            async with caller.stream("GET", path + "/events") as answer:
                events = events_of(answer)
                assert (await caller.get(path + "/events")).status_code == 429
                message, number = "x" * 1000, 0
                async with asyncio.timeout(DEADLINE_S):
                    while feeds.num_clients == 2:
                        number += 1
                        job_file.write_status({"state": "Running", "conditions": conditions(number, message)})
                        await first(events, "conditions")
                job_file.write_status({"state": "Complete", "conditions": []})
                assert (await first(events, "conditions")).data["state"] == "Complete"


def conditions(number: int, message: str) -> list[dict[str, Any]]:
    """Twelve conditions that differ with each number and are long."""
    return [
        {
            "type": f"Type{i}",
            "status": "True",
            "reason": f"Number{number}",
            "message": message,
            "lastTransitionTime": "2026-01-01T10:00:00Z",
            "observedGeneration": 1,
        }
        for i in range(12)
    ]


async def raw(base_url: str, data: bytes, *, up_to: bytes = b"") -> bytes:
    """What a peer that sends these bytes and then goes gets back; with `up_to` it goes when that has come."""
    address = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(data)
    await writer.drain()
    async with asyncio.timeout(DEADLINE_S):
        found = await reader.readuntil(up_to) if up_to else b""
        with contextlib.suppress(OSError):
            writer.write_eof()
        found += await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return found


@pytest.mark.probe("P-31")
async def test_an_upload_that_is_cut_off_leaves_nothing(
    base_url: str,
    caller: httpx2.AsyncClient,
    path: str,
    token: str,
    control: Control,
    make_weights: Any,
    until: Any,
) -> None:
    tensors = {"a": ("U8", [9 * 2**20])}
    for fill in range(7):
        assert (await caller.put(path + "/weights", content=make_weights(fill=fill))).status_code == 201
    current = (await caller.get(path + "/weights/7")).content
    data = make_weights(tensors=tensors)
    head = (
        f"PUT {path}/weights HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    half = head.encode() + data[: len(data) // 2 + 4 * 2**20]
    await raw(base_url, half)
    wrong = await caller.put(path + "/weights", content=data, headers={"x-checksum-sha256": "0" * 64})
    assert wrong.status_code == 422
    assert (wrong.json()["expected"], wrong.json()["found"]) == ("0" * 64, hashlib.sha256(data).hexdigest())
    assert (await caller.get(path + "/weights/8")).status_code == 404
    assert (await caller.get(path + "/weights")).json()["latestVersion"] == 7
    assert (await caller.get(path + "/weights/latest")).content == current
    await until(lambda: no_uploads(control))
    good = await caller.put(path + "/weights", content=data)
    assert (good.status_code, good.json()["policyVersion"]) == (201, 8)
    assert (
        hashlib.sha256((await caller.get(path + "/weights/8")).content).hexdigest() == good.json()["digest"]
    )


async def no_uploads(control: Control) -> bool:
    pattern = control._keys.prefix.replace("{", "[{]").replace("}", "[}]") + ":upload:*"
    return not await control.session.client.execute_command("KEYS", pattern)


class TestUploadsAtOnce:
    """There is a bound on uploads that run, and a place is given back whatever becomes of its upload."""

    @pytest.fixture
    def limits(self, request: pytest.FixtureRequest) -> Limits:
        return Limits(max_uploads=1, body_idle_s=request.param)

    @pytest.fixture
    def begun(self, path: str, token: str) -> bytes:
        """An upload that does not go on."""
        head = f"PUT {path}/weights HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        return f"{head}Content-Length: 999\r\n\r\n".encode() + b"\x40"

    @pytest.mark.parametrize("limits", [DEADLINE_S], ids=["patient"], indirect=True)
    async def test_one_too_many_is_refused_until_the_other_goes(
        self,
        app: FastAPI,
        base_url: str,
        caller: httpx2.AsyncClient,
        path: str,
        begun: bytes,
        control: Control,
        make_weights: Any,
        until: Any,
    ) -> None:
        address = urlsplit(base_url)
        _, sleeper = await asyncio.open_connection(address.hostname, address.port)
        sleeper.write(begun)
        await until(lambda: app.state.gateway.uploads.in_use == 1)
        refused = await caller.put(path + "/weights", content=make_weights())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        sleeper.close()
        await until(lambda: app.state.gateway.uploads.in_use == 0)
        assert (await caller.put(path + "/weights", content=make_weights())).status_code == 201
        await sleeper.wait_closed()

    @pytest.mark.parametrize("limits", [0.3], ids=["impatient"], indirect=True)
    async def test_one_that_sleeps_gives_its_place_back(
        self,
        app: FastAPI,
        base_url: str,
        begun: bytes,
        control: Control,
        until: Any,
    ) -> None:
        answer = await raw(base_url, begun, up_to=b"}")
        assert b"408 Request Timeout" in answer
        assert b"urn:rolloutjob:problem:timeout" in answer
        await until(lambda: app.state.gateway.uploads.in_use == 0)


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"", id="the first"),
        pytest.param(HEALTH + b"\r\n", id="one after an answer"),
        pytest.param(
            b"PUT /v1/rolloutjobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n\r\n",
            id="the rest of a body that was refused",
        ),
    ],
)
async def test_a_connection_that_does_not_bring_its_request_is_closed(
    base_url: str, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """Whoever sends a little now and then would hold it for ever, without a token."""
    monkeypatch.setattr("rollout_api.serve.HEAD_S", 0.3)
    address = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(before + b"GET /healthz HTTP/1.1\r\nHost:")
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(OSError):
            while not writer.transport.is_closing() and not reader.at_eof():
                writer.write(b" ")
                await asyncio.sleep(0.05)
            assert (await reader.read()).count(b"HTTP/1.1 ") == (1 if before else 0)
    writer.close()


async def test_a_connection_is_kept_while_requests_come(
    base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout_api.serve.HEAD_S", 0.5)
    address = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(8):
            writer.write((HEALTH + b"\r\n") * 3)
            for _ in range(3):
                assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200 OK")
            await asyncio.sleep(0.1)
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(HEALTH + b"X: " + b"a" * 65_600 + b"\r\n\r\n", id="a long header"),
        pytest.param(HEALTH + b"X: " + b"a" * 30_000_000, id="a header without end"),
        pytest.param(HEALTH + b"X: a\r\n" * 11_000 + b"\r\n", id="many headers"),
        pytest.param(b"GET /healthz?" + b"a" * 30_000_000, id="a path without end"),
        pytest.param(
            b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\na\r\n0\r\nX: " + b"a" * 30_000_000,
            id="a trailer without end",
        ),
    ],
)
async def test_a_head_has_a_size(base_url: str, caller: httpx2.AsyncClient, head: bytes) -> None:
    """Nobody fills the gateway's memory with what comes before a token is looked at."""
    answer = b""
    with contextlib.suppress(OSError):  # it does not wait for the rest
        answer = await raw(base_url, head)
    assert not answer or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert b" 200 OK" not in answer
    assert len(head) > 1_000_000 or b"431 Request Header Fields Too Large" in answer
    assert (await caller.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n", id="two hosts"),
        pytest.param(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", id="a long path"),
        pytest.param(b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n", id="no length"),
        pytest.param(
            b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two lengths",
        ),
    ],
)
async def test_what_is_no_request(base_url: str, caller: httpx2.AsyncClient, data: bytes) -> None:
    answer = await raw(base_url, data)
    assert not answer or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert not answer or b"content-type: application/problem+json" in answer
    assert (await caller.get("/healthz")).status_code == 200


async def test_the_end_closes_event_streams_and_the_socket(
    store: LocalStore, stream: AsyncSession, job: RolloutJob, path: str, token: str, control: Control
) -> None:
    app = create_app(store=store, stream=stream, auth=TokenAuth(token))
    sock = bind("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=DEADLINE_S) as caller:
        async with serving(app, sock, grace_s=DEADLINE_S) as url:
            request = caller.build_request("GET", url + path + "/events")
            answer = await caller.send(request, stream=True)
            events = events_of(answer)
            await first(events, "conditions")
            before = loop.time()
        assert loop.time() - before < DEADLINE_S / 2  # nobody waited for the stream to end by itself
        async with asyncio.timeout(DEADLINE_S):
            assert all(event.name == "progress" for event in [event async for event in events])
        await answer.aclose()
        with pytest.raises(httpx2.ConnectError):
            await caller.get(url + "/healthz")
    assert sock.fileno() == -1
    assert not [task for task in asyncio.all_tasks() if "Feed" in repr(task)]


async def test_a_port_in_use_is_told_at_once(base_url: str) -> None:
    with pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", urlsplit(base_url).port or 0)


async def test_signals_are_left_to_the_caller(base_url: str) -> None:
    import signal

    handler = signal.getsignal(signal.SIGTERM)
    assert not getattr(handler, "__module__", "").startswith("uvicorn")


@pytest.mark.probe("P-54")
async def test_the_log_holds_paths_alone(
    caller: httpx2.AsyncClient,
    path: str,
    token: str,
    job: RolloutJob,
    caplog: pytest.LogCaptureFixture,
    until: Any,
) -> None:
    caplog.set_level(logging.DEBUG)
    await caller.get(path + "?token=" + token, headers={"cookie": f"rollout_session={token}"})

    def ours() -> list[str]:
        return [record.getMessage() for record in caplog.records if not record.name.startswith("http")]

    await until(lambda: any(path in line for line in ours()))  # the line comes after the answer
    assert not any(token in line for line in ours())


async def test_a_session_ends_its_event_stream(
    store: LocalStore, stream: AsyncSession, job: RolloutJob, path: str, token: str, control: Control
) -> None:
    begun = time.time()
    # However late the stream begins, the session lets it begin; its end is by the clock of this machine.
    auth = TokenAuth(token, session_s=3, clock=lambda: begun)
    app = create_app(store=store, stream=stream, auth=auth, settings=ApiSettings())
    async with (
        serving(app, bind("127.0.0.1", 0), grace_s=1.0) as url,
        httpx2.AsyncClient(base_url=url, timeout=DEADLINE_S) as browser,
    ):
        signed_in = await browser.post("/login", data={"token": token})
        assert signed_in.status_code == 303
        async with browser.stream("GET", path + "/events") as answer:
            assert answer.status_code == 200
            async with asyncio.timeout(DEADLINE_S):
                names = {event.name async for event in events_of(answer)}
        assert time.time() > int(begun) + 3 - 0.1
        assert names <= {"conditions", "progress"}
