"""Raw calls to the API server through `kubernetes.aio`: JSON in, JSON out, bounded, tried again, counted.

Used by everything in this package. Every call that the operator makes may be repeated: creations have deterministic
names, deletions and patches name the UID. What the library does of itself (typed models, retries) is not used: it
refuses fields that it does not know, costs memory, and does not retry.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rollout_contract.errors import Fault, SpecError
from rollout_operator.kube.api_errors import ApiError, ApiUnavailable, Patience, error_of
from rollout_operator.kube.resources import Call, Document

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
WATCH_SILENCE_S = 70.0
"""Bookmarks come every minute: a watch that is silent for longer is dead."""
MAX_IN_FLIGHT = 48
"""More at once makes each slower, and takes from other clients of the server."""

OnCall = Callable[[Call, str], None]
"""Told of every answer: the call and the status code (`0` where there was none)."""


async def load_configuration() -> Configuration:
    """How to reach the server: `KUBECONFIG`, the pod's own account, or `~/.kube/config`. SpecError if there is none."""
    found = Configuration()
    try:
        if not os.environ.get("KUBECONFIG") and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=os.environ.get("KUBECONFIG"), client_configuration=found, persist_config=False
            )
    except (config.ConfigException, OSError) as error:
        message = f"the API server cannot be reached: {error}. Run in a pod, or set KUBECONFIG"
        raise SpecError([Fault("KUBECONFIG", None, message)]) from error
    return found


class KubernetesApi:
    """The API server. Belongs to one event loop; close it, or use it with `async with`."""

    def __init__(
        self, *, on_call: OnCall = lambda call, code: None, patience: Patience | None = None
    ) -> None:
        self._on_call = on_call
        self._patience = patience or Patience()
        self._client: ApiClient | None = None
        self._retired: list[ApiClient] = []
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def __aenter__(self) -> KubernetesApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        clients = [*self._retired, *filter(None, [self._client])]
        self._client, self._retired = None, []
        for client in clients:
            await client.close()  # type: ignore[no-untyped-call]

    async def call(self, call: Call, *, before: Callable[[], None] = lambda: None) -> Document:
        """The answer's document. ApiError or ApiUnavailable, after as many tries as make sense.

        `before` is called before each try and may refuse it by raising.
        """
        started, tries = time.monotonic(), 0
        while True:
            before()
            try:
                return await self._try(call)
            except (ApiError, ApiUnavailable) as error:
                elapsed = time.monotonic() - started
                wait = self._patience.wait_of(error, tries=tries, elapsed_s=elapsed, jitter=random.random())
                if wait is None:
                    raise
            tries += 1
            await asyncio.sleep(wait)

    async def call_once(self, call: Call, *, timeout_s: float) -> Document:
        """One try, within `timeout_s` in all."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._try(call)
        except TimeoutError as error:
            raise ApiUnavailable(f"{_doing(call)}: no answer within {timeout_s:.0f} s") from error

    async def pages(self, call: Call) -> AsyncGenerator[Document, None]:
        """Every page of a list. ApiError with `is_expired` if it took so long that the rest is gone."""
        query = {"limit": "500", **call.query}
        while True:
            page = await self.call(Call(call.verb, call.resource, call.path, query, accept=call.accept))
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    async def stream(self, call: Call) -> AsyncGenerator[Document, None]:
        """The events of a watch, until the server ends it. ApiError (`is_expired`: list anew), ApiUnavailable."""
        client = await self._open()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        response = await self._send(client, call, timeout)
        self._on_call(call, str(response.status))
        try:
            if response.status >= 400:
                raise await self._refusal(call, client, response, await _data(call, response))
            async with aclosing(_lines(call, response)) as lines:
                async for line in lines:
                    yield _event(call, line)
        finally:
            response.close()

    # --- one try

    async def _try(self, call: Call) -> Document:
        async with self._slots:
            client = await self._open()
            response = await self._send(client, call, _bounded())
            data = await _data(call, response)
        self._on_call(call, str(response.status))
        if response.status >= 400:
            raise await self._refusal(call, client, response, data)
        document = _parsed(data)
        if not isinstance(document, dict):
            raise ApiUnavailable(f"{_doing(call)}: the answer is no object: {str(document)[:200]!r}")
        return document

    async def _send(
        self, client: ApiClient, call: Call, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": call.accept, "Content-Type": call.content_type}
        method, url, headers, _, _ = await client.param_serialize(
            call.method,
            call.path,
            query_params=list(call.query.items()),
            header_params=headers,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await client.call_api(method, url, headers, call.body, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._on_call(call, "0")
            if isinstance(error, aiohttp.ClientConnectorCertificateError):
                await self._forget(client)
            raise ApiUnavailable(f"{_doing(call)}: {_said(error)}") from error
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _refusal(
        self, call: Call, client: ApiClient, response: aiohttp.ClientResponse, data: bytes
    ) -> ApiError | ApiUnavailable:
        error = error_of(_doing(call), response.status, _parsed(data), response.headers)
        if response.status != 401:
            return error
        # Credentials run out and are replaced (a token of an account, a certificate): the next try reads them anew.
        await self._forget(client)
        return ApiUnavailable(str(error))

    async def _open(self) -> ApiClient:
        async with self._opening:
            if self._client is None:
                settings = await load_configuration()
                settings.connection_pool_maxsize = (
                    0  # bounded by our own count, in which a wait costs no time-out
                )
                self._client = ApiClient(settings)
                self._client.user_agent = f"rollout-operator/{version('rolloutjob')}"
            return self._client

    async def _forget(self, client: ApiClient) -> None:
        if self._client is not client:
            return
        log.warning("the API server and our credentials no longer fit: they are read anew")
        # Calls may still be in flight on this one; on those before it no more.
        before, self._retired, self._client = self._retired, [client], None
        for old in before:
            await old.close()  # type: ignore[no-untyped-call]


def _bounded() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)


def _doing(call: Call) -> str:
    return f"{call.verb} {call.path}"


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def _data(call: Call, response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiUnavailable(f"{_doing(call)}: {_said(error)}") from error


def _parsed(data: bytes) -> Any:
    """The document, or the text where the server (or a proxy before it) sent none."""
    try:
        return json.loads(data) if data else {}
    except ValueError:
        return data.decode(errors="replace")


async def _lines(call: Call, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Lines of any length: a pod's event may be longer than the stream's own buffer.

    With a bound of our own: the library's is lost where a proxy breaks the encoding, and its reader would wait for ever.
    """
    rest = b""
    try:
        while True:
            async with asyncio.timeout(WATCH_SILENCE_S):
                part = await response.content.readany()
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line:
                    yield line
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ApiUnavailable(f"{_doing(call)}: {_said(error)}") from error


def _event(call: Call, line: bytes) -> Document:
    event = _parsed(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise ApiUnavailable(f"{_doing(call)}: no event: {line[:200]!r}")
    if event.get("type") == "ERROR":
        status = int(event["object"].get("code") or 500)
        raise error_of(_doing(call), status, event["object"], {})
    return event
