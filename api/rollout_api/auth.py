"""Who is asking, and whether they may: the protocol, and the two ways of a local run (a cluster's: `kube.auth`).

The middleware asks `authenticate` and `identity_of_session` for every request that is not on its short list; each route
asks `may` with its action. Cookies are for reading only (the page and its event stream): whatever changes something
needs the token itself, so no other web page can do it with a visitor's cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollout_api.identity import Action, Identity
from rollout_api.settings import ApiSettings, SettingsError

MIN_TOKEN_BYTES = 16
"""A shorter token can be guessed."""
MAX_TOKEN_CHARACTERS = 8192
"""Longer than any token: nobody makes us hash megabytes."""

SESSION_S = 15 * 60
"""Life of the page's cookie."""
SESSION_MAX_S = 12 * 3600
"""However often it is renewed, after so long the token is asked for again."""


class Auth(Protocol):
    """A way to know callers and their rights. StoreUnavailable where whoever knows does not answer."""

    @property
    def hint(self) -> str:
        """Where somebody without a token finds one: a sentence."""
        ...

    @property
    def session_s(self) -> int:
        """Life of the page's cookie, in seconds; it is renewed while the page is looked at."""
        ...

    def check(self, settings: ApiSettings) -> None:
        """SettingsError that names the setting, if this way must not be used with these settings."""
        ...

    async def authenticate(self, token: str | None) -> Identity | None:
        """Who has this bearer token (None: no token was sent); None: nobody."""
        ...

    async def may(self, identity: Identity, action: Action) -> bool:
        """Whether they may do this."""
        ...

    async def open_session(self, token: str) -> str | None:
        """The value of a cookie for somebody with this token; None: nobody has it."""
        ...

    async def renew_session(self, cookie: str) -> str | None:
        """A cookie with a new life for a cookie that is still valid; None: it is not, or is too old to renew."""
        ...

    async def identity_of_session(self, cookie: str) -> Identity | None:
        """Who has this cookie; None: nobody, or it has expired."""
        ...


LOCAL_HINT = "A local run prints its token, and keeps it in a file of its directory."


class NoAuth:
    """Everybody may do everything; accepted on loopback only, where the other accounts of the machine still get in."""

    hint = LOCAL_HINT
    session_s = SESSION_S
    _anyone = Identity("anyone")

    def check(self, settings: ApiSettings) -> None:
        if not settings.is_loopback:
            raise SettingsError(
                f"--no-auth is for loopback only, and the gateway's --host is {settings.host!r}: leave --no-auth out, "
                "or bind to 127.0.0.1"
            )

    async def authenticate(self, token: str | None) -> Identity | None:
        return self._anyone

    async def may(self, identity: Identity, action: Action) -> bool:
        return True

    async def open_session(self, token: str) -> str | None:
        return "none"

    async def renew_session(self, cookie: str) -> str | None:
        return "none"

    async def identity_of_session(self, cookie: str) -> Identity | None:
        return self._anyone


class TokenAuth:
    """One token opens everything: the local run's way. Sessions are signed, so that no server has to remember them."""

    hint = LOCAL_HINT

    def __init__(
        self,
        token: str,
        *,
        session_s: int = SESSION_S,
        session_max_s: int = SESSION_MAX_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if len(token.encode()) < MIN_TOKEN_BYTES:
            raise SettingsError(
                f"the gateway's token has less than {MIN_TOKEN_BYTES} bytes: it could be guessed"
            )
        self._token_digest = hashlib.sha256(token.encode()).digest()
        self._session_key = hmac.digest(token.encode(), b"rolloutjob-session-v1", "sha256")
        self.session_s = session_s
        self._session_max_s = session_max_s
        self._clock = clock

    @classmethod
    def from_file(cls, path: Path) -> TokenAuth:
        """The token that `create_token_file` made. SettingsError if others can read it, or it is no token."""
        try:
            mode = path.stat().st_mode
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"the token file {path} cannot be read: {error.__class__.__name__}"
            ) from error
        if stat.S_IMODE(mode) & 0o077:
            raise SettingsError(f"the token file {path} can be read by others: chmod 600 {path}")
        return cls(text)

    def __repr__(self) -> str:
        return "TokenAuth(…)"

    def check(self, settings: ApiSettings) -> None:
        """A token is good everywhere."""

    async def authenticate(self, token: str | None) -> Identity | None:
        if token is None or len(token) > MAX_TOKEN_CHARACTERS:
            return None
        # digests are compared, so that neither content nor length shows in the time that it takes
        found = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return Identity("token") if hmac.compare_digest(found, self._token_digest) else None

    async def may(self, identity: Identity, action: Action) -> bool:
        return True

    async def open_session(self, token: str) -> str | None:
        if await self.authenticate(token) is None:
            return None
        return self._signed(int(self._clock()), secrets.token_hex(8))

    async def renew_session(self, cookie: str) -> str | None:
        session = self._opened(cookie)
        if session is None or self._clock() >= session.begun + self._session_max_s:
            return None
        return self._signed(session.begun, session.nonce)

    async def identity_of_session(self, cookie: str) -> Identity | None:
        session = self._opened(cookie)
        return Identity("session", expires=session.expires) if session else None

    def _signed(self, begun: int, nonce: str) -> str:
        expires = min(int(self._clock()) + self.session_s, begun + self._session_max_s)
        text = f"1.{begun}.{expires}.{nonce}"
        return f"{text}.{self._signature(text)}"

    def _opened(self, cookie: str) -> _Session | None:
        text, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        _, begun, expires, nonce = text.split(".")
        session = _Session(int(begun), int(expires), nonce)
        return session if self._clock() < session.expires else None

    def _signature(self, text: str) -> str:
        return hmac.new(self._session_key, text.encode("utf-8", "surrogateescape"), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class _Session:
    begun: int
    expires: int
    nonce: str


def create_token_file(path: Path) -> str:
    """Make a random token and keep it in a new file that only its owner can read. FileExistsError if there is one."""
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token
