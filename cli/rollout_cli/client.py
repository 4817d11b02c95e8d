"""A small HTTP client for the gateway, on the standard library: bearer token, JSON, files, and errors in words.

Called by `remote`. Knows nothing of jobs; which gateway and which token is `connection`'s matter.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from rollout_cli.errors import GatewayError
from rollout_contract.tokens import authorization

TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 64 * 2**20
"""Of one JSON answer; a list of jobs is far smaller."""
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Client:
    """Calls one gateway. `token` None: none is sent."""

    url: str
    token: str | None = field(default=None, repr=False)

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON of a GET."""
        return self._json("GET", path, query=query)

    def put(self, path: str, body: object) -> Any:
        """The JSON that a PUT of JSON answers with."""
        return self._json(
            "PUT", path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )

    def post(self, path: str) -> Any:
        """The JSON that a POST without a body answers with."""
        return self._json("POST", path, data=b"")

    def upload(self, path: str, file: IO[bytes], size: int, *, headers: Mapping[str, str]) -> Any:
        """The JSON that a PUT of a file's bytes answers with."""
        return self._json("PUT", path, data=file, headers={**headers, "Content-Length": str(size)})

    def download(self, path: str, target: IO[bytes]) -> Mapping[str, str]:
        """Write the body of a GET to a file; returns the answer's headers."""
        with self._open("GET", path) as answer:
            try:
                while chunk := answer.read(CHUNK_BYTES):
                    target.write(chunk)
            except (OSError, http.client.HTTPException) as error:
                raise GatewayError(f"{self.url}{path}: the answer broke off: {error}") from error
            return dict(answer.headers)

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        if query:
            path = f"{path}?{urllib.parse.urlencode(query)}"
        with self._open(method, path, data=data, headers=headers) as answer:
            try:
                return json.loads(answer.read(MAX_ANSWER_BYTES) or b"null")
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise GatewayError(f"{self.url}{path}: the answer is no JSON: {error}") from error

    def _open(
        self,
        method: str,
        path: str,
        *,
        data: bytes | IO[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers=dict(headers or {})
        )
        if self.token is not None:
            request.add_unredirected_header("Authorization", authorization(self.token))
        try:
            answer: http.client.HTTPResponse = _opener(self.url).open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise GatewayError(_problem(error), status=error.code) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise GatewayError(f"the gateway {self.url} does not answer: {reason}") from error
        return answer


def quoted(name: str) -> str:
    """One segment of a path."""
    return urllib.parse.quote(name, safe="")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """A proxy of the environment is for other machines, never for this one."""
    host = urllib.parse.urlsplit(url).hostname or ""
    handlers = [urllib.request.ProxyHandler({})] if host in {"localhost", "127.0.0.1", "::1"} else []
    return urllib.request.build_opener(*handlers)


def _problem(error: urllib.error.HTTPError) -> str:
    """The gateway's own words (problem+json) for what went wrong."""
    try:
        problem = json.loads(error.read(MAX_ANSWER_BYTES))
        detail = str(problem.get("detail") or problem.get("title") or "")
        faults = problem.get("faults") or problem.get("errors") or []
    except (OSError, ValueError, AttributeError):
        detail, faults = "", []
    lines = [f"{error.code} {error.reason}: {detail}" if detail else f"{error.code} {error.reason}"]
    lines += [f"  {f.get('path', '')}: {f.get('message', '')}" for f in faults if isinstance(f, dict)]
    if error.code == http.client.UNAUTHORIZED:
        lines.append("  give the token with --token-file or ROLLOUT_TOKEN")
    return "\n".join(lines)
