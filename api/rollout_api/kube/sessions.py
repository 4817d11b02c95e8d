"""The page's cookie in a cluster: the caller's token, encrypted, for some minutes.

A cookie must let any replica act with the caller's rights, so it has to hold the token; encrypted, so that who finds one can
do no more with it than look at pages, and not for long. Nothing is kept on the server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.fernet import Fernet, InvalidToken

from rollout_api.auth import SESSION_MAX_S, SESSION_S
from rollout_api.errors import Kind, Problem
from rollout_api.settings import SettingsError

MIN_KEY: Final = 32
MAX_COOKIE: Final = 4000
"""Browsers drop a longer cookie without a word."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie holds. Times in seconds since 1970."""

    token: str
    begun: int
    expires: int


class SealedSessions:
    """Makes and opens cookies."""

    def __init__(
        self,
        key: str = "",
        *,
        session_s: int = SESSION_S,
        session_max_s: int = SESSION_MAX_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if key and len(key) < MIN_KEY:
            raise SettingsError(
                f"ROLLOUT_SESSION_KEY has less than {MIN_KEY} characters: it could be guessed"
            )
        secret = key.encode() if key else secrets.token_bytes(32)
        digest = hashlib.sha256(b"rolloutjob-session-v1" + secret).digest()
        self._box = Fernet(base64.urlsafe_b64encode(digest))
        self.session_s = session_s
        self._session_max_s = session_max_s
        self._clock = clock

    def __repr__(self) -> str:
        return "SealedSessions(…)"

    def open(self, cookie: str) -> Session | None:
        """What is in a cookie that we made and that has not expired; None otherwise."""
        try:
            now = int(self._clock())
            text = self._box.decrypt_at_time(cookie.encode(), ttl=self.session_s, current_time=now)
            made = self._box.extract_timestamp(cookie.encode())
        except (InvalidToken, ValueError):
            return None
        token, begun = json.loads(text)
        expires = min(made + self.session_s, begun + self._session_max_s)
        return Session(token, begun, expires) if now < expires else None

    def new(self, token: str) -> str:
        """A cookie for a token. Problem if no browser would keep it."""
        return self._sealed(token, int(self._clock()))

    def renewed(self, session: Session) -> str | None:
        """A cookie with a new life; None if it was renewed long enough."""
        if self._clock() >= session.begun + self._session_max_s:
            return None
        return self._sealed(session.token, session.begun)

    def _sealed(self, token: str, begun: int) -> str:
        text = json.dumps([token, begun]).encode()
        cookie = self._box.encrypt_at_time(text, current_time=int(self._clock())).decode()
        if len(cookie) > MAX_COOKIE:
            raise Problem(
                Kind.TOO_LARGE,
                f"The token has {len(token)} characters, too many for the page: `kubectl create token` makes a shorter one.",
            )
        return cookie
