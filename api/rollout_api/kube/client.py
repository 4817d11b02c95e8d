"""Raw calls to the API server through `kubernetes.aio`: JSON in, JSON out, bounded.

Two ways in, over connections of their own: with the gateway's account, and with a caller's token. The second one never
carries a credential of the gateway, not even a client certificate: the server would take that before it looks at a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from rollout_api.kube.errors import error_of
from rollout_api.settings import SettingsError
from rollout_api.store import NotKnown, StoreUnavailable
from rollout_contract.errors import RolloutError

logger = logging.getLogger(__name__)

Document = dict[str, Any]

ANSWER_S: Final = 8.0
CONNECT_S: Final = 3.0
WATCH_SILENCE_S: Final = 75.0
"""Bookmarks come every minute: a watch that is silent for longer is dead."""
MAX_IN_FLIGHT: Final = 64
"""Calls at once by each way in, so that strangers' tokens, about which we ask, do not hold up those whom we know.
Watches are bounded by the number of event streams."""
TRIES: Final = 3
TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
"""What may stand in a header as a bearer token."""

_SHARED: Final = (
    "host",
    "ssl_ca_cert",
    "ca_cert_data",
    "verify_ssl",
    "tls_server_name",
    "assert_hostname",
    "disable_strict_ssl_verification",
    "proxy",
    "no_proxy",
    "proxy_headers",
)
"""Of a configuration: how the server is reached and known, without any credential."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `is_repeatable`: a second one does no harm if the answer to the first was lost."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Document | None = None
    content_type: str = "application/json"
    is_repeatable: bool = False


async def load_configuration() -> Configuration:
    """How to reach the server: `KUBECONFIG`, else the pod's own account, else `~/.kube/config`. SettingsError if none."""
    found = Configuration()
    try:
        if not os.environ.get("KUBECONFIG") and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=os.environ.get("KUBECONFIG"), client_configuration=found, persist_config=False
            )
    except (config.ConfigException, OSError) as error:
        raise SettingsError(
            f"KUBECONFIG: the Kubernetes API cannot be reached: {error}. Run in a pod, or set KUBECONFIG"
        ) from error
    return found


def without_credentials(found: Configuration) -> Configuration:
    """The same server, and nothing by which it would know us."""
    bare = Configuration()
    for name in _SHARED:
        if hasattr(found, name):
            setattr(bare, name, getattr(found, name))
    return bare


class KubernetesClient:
    """The API server. Belongs to one event loop; use it with `async with`."""

    def __init__(self, own: Configuration) -> None:
        self._own = _client(own)
        self._callers = _client(without_credentials(own))
        self._own_slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._callers_slots = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def __aenter__(self) -> KubernetesClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self._own, self._callers):
            await client.close()  # type: ignore[no-untyped-call]

    async def call(self, request: Request, *, token: str | None = None) -> Document:
        """The answer's document, for the caller with this token (None: for the gateway itself).

        Errors of the store, or SpecError. What may be repeated is, a few times, while the server is busy or away.
        """
        tries = TRIES if request.is_repeatable else 1
        while True:
            tries -= 1
            try:
                return await self._try(request, token)
            except StoreUnavailable as error:
                if tries == 0 or (error.retry_after_s or 0) > 1:
                    raise
            await asyncio.sleep(0.1 + 0.2 * random.random())

    async def stream(self, request: Request, *, token: str) -> AsyncGenerator[Document, None]:
        """The events of a watch, until the server ends it. Errors as for `call`; `errors.Expired`: read anew."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=WATCH_SILENCE_S)
        response = await self._send(request, token, timeout)
        try:
            if response.status >= 400:
                raise error_of(response.status, _parsed(await _data(response)), response.headers)
            async with aclosing(_lines(response)) as lines:
                async for line in lines:
                    yield _event(line)
        finally:
            response.close()

    async def _try(self, request: Request, token: str | None) -> Document:
        async with _slot(self._own_slots if token is None else self._callers_slots):
            timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
            response = await self._send(request, token, timeout)
            data = await _data(response)
        document = _parsed(data)
        if response.status >= 400:
            raise error_of(response.status, document, response.headers)
        if not isinstance(document, dict):
            raise StoreUnavailable("what answers for the Kubernetes API sent no JSON object")
        return document

    async def _send(
        self, request: Request, token: str | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        client, auth = self._own, ["BearerToken"]
        headers = {"Accept": "application/json", "Content-Type": request.content_type}
        if token is not None:
            if not TOKEN.fullmatch(token):
                raise NotKnown("There is no usable token with the request.")
            client, auth = self._callers, []
            headers["Authorization"] = f"Bearer {token}"
        method, url, headers, body, _ = await client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params=headers,
            body=request.body,
            auth_settings=auth,
        )
        try:
            answer = await client.call_api(method, url, headers, body, _request_timeout=timeout)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _away(error) from error
        response: aiohttp.ClientResponse = answer.response
        return response


@asynccontextmanager
async def _slot(slots: asyncio.Semaphore) -> AsyncGenerator[None]:
    """One of the calls at once. StoreUnavailable if none becomes free in the time of an answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await slots.acquire()
    except TimeoutError as error:
        raise StoreUnavailable("too many calls wait for the Kubernetes API", retry_after_s=5) from error
    try:
        yield
    finally:
        slots.release()


def _client(configuration: Configuration) -> ApiClient:
    configuration.connection_pool_maxsize = 0  # bounded by our own count, in which a wait costs no time-out
    configuration.retries = False
    client = ApiClient(configuration)
    client.user_agent = f"rollout-gateway/{version('rolloutjob')}"
    return client


def _away(error: BaseException) -> StoreUnavailable:
    logger.warning("the Kubernetes API: %s: %s", type(error).__name__, error)
    return StoreUnavailable("the Kubernetes API cannot be reached, or does not answer")


async def _data(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _away(error) from error


def _parsed(data: bytes) -> Any:
    """The document, or the text where something before the server sent none."""
    try:
        return json.loads(data) if data else {}
    except ValueError:
        return data.decode(errors="replace")


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Lines of any length: an event may be longer than the stream's own buffer."""
    rest = b""
    try:
        async for part in response.content.iter_any():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line:
                    yield line
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _away(error) from error


def _event(line: bytes) -> Document:
    event = _parsed(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise StoreUnavailable("what answers for the Kubernetes API sent no event")
    if event.get("type") == "ERROR":
        error: RolloutError = error_of(int(event["object"].get("code") or 500), event["object"], {})
        raise error
    return event
