"""Asks a gateway where a job's stream is: for `RolloutStream.from_gateway`. Knows nothing of Redis.

The gateway tells the server's address and no secret, so a learner needs the server's password from elsewhere (a Secret).
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import quote, urlsplit

from rollout_contract.errors import JobNotFound, StreamUnavailable
from rollout_contract.tokens import authorization

TOKEN: Final = "ROLLOUT_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MAX_ANSWER: Final = 64 * 1024


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is for the gateway that was named, not for where it may point to."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


def stream_url(
    gateway: str, job: tuple[str, str], *, token: str | None, ca_file: str | None, timeout_s: float
) -> str:
    """`redis[s]://[user@]host:port` of a job (namespace, name). ValueError, JobNotFound, StreamUnavailable.

    No error shows the token.
    """
    if urlsplit(gateway).scheme not in ("http", "https") or not urlsplit(gateway).hostname:
        raise ValueError("a gateway's address is http[s]://host[:port]")
    namespace, name = (quote(part, safe="") for part in job)
    request = urllib.request.Request(
        f"{gateway.rstrip('/')}/v1/namespaces/{namespace}/rolloutjobs/{name}/stream"
    )
    if token:
        request.add_unredirected_header("Authorization", authorization(token))
    context = ssl.create_default_context(cafile=ca_file)
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            document = json.loads(answer.read(MAX_ANSWER))
            return str(document["url"])
    except urllib.error.HTTPError as error:
        raise _refused(gateway, job, error) from error
    except (OSError, HTTPException) as error:
        raise StreamUnavailable(f"the gateway at {gateway} cannot be reached: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StreamUnavailable(f"what answers at {gateway} is no gateway of RolloutJobs") from error


def _refused(gateway: str, job: tuple[str, str], error: urllib.error.HTTPError) -> Exception:
    detail = _detail(error)
    if error.code == 404:
        return JobNotFound(f"the gateway at {gateway} knows no job {'/'.join(job)}: {detail}")
    return StreamUnavailable(f"the gateway at {gateway} answered {error.code}: {detail}")


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        document: Any = json.loads(error.read(MAX_ANSWER))
        return str(document["detail"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(error.reason)
