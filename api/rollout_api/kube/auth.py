"""Callers in a cluster: their tokens and rights, as the cluster knows them, kept for seconds.

Implements `auth.Auth`. The API server judges everything; what is decided here is only that a token which cannot be one, or
says itself that it has expired, is not worth asking about.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable
from typing import Final

from rollout_api.identity import Action, Identity
from rollout_api.kube.client import TOKEN
from rollout_api.kube.reviews import Reviews, User
from rollout_api.kube.sessions import SealedSessions
from rollout_api.settings import ApiSettings
from rollout_api.ttl_cache import TtlCache

GOOD_S: Final = 10.0
"""A token or a right that was taken away still counts for so long."""
BAD_S: Final = 3.0
"""A right that was given counts after so long."""


class KubernetesAuth:
    """`Auth` by the API server's word."""

    hint = "In a cluster it is a Kubernetes token, such as `kubectl create token ACCOUNT --namespace NAMESPACE` prints."

    def __init__(
        self, reviews: Reviews, sessions: SealedSessions, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._reviews = reviews
        self._sessions = sessions
        self._clock = clock
        self._users: TtlCache[bytes, User | None] = TtlCache(_ttl_of, clock=clock)
        self._verdicts: TtlCache[tuple[bytes, Action], bool] = TtlCache(_ttl_of, max_size=16384, clock=clock)

    def __repr__(self) -> str:
        return "KubernetesAuth(…)"

    @property
    def session_s(self) -> int:
        """See `Auth`."""
        return self._sessions.session_s

    def check(self, settings: ApiSettings) -> None:
        """Good everywhere."""

    async def authenticate(self, token: str | None) -> Identity | None:
        """See `Auth`."""
        if token is None or not TOKEN.fullmatch(token):
            return None
        expires = expiry_of(token)
        if expires is not None and expires <= self._clock():
            return None
        user = await self._user(token)
        return Identity(user.name, expires, token) if user else None

    async def may(self, identity: Identity, action: Action) -> bool:
        """See `Auth`. Nobody with a token that is no longer valid may do anything."""
        known = await self.authenticate(identity.token)
        user = await self._user(identity.token) if known else None
        if user is None:
            return False
        key = (_digest(identity.token), action)
        return await self._verdicts.get(key, lambda: self._reviews.may(user, identity.token, action))

    async def open_session(self, token: str) -> str | None:
        """See `Auth`."""
        return self._sessions.new(token) if await self.authenticate(token) else None

    async def renew_session(self, cookie: str) -> str | None:
        """See `Auth`."""
        session = self._sessions.open(cookie)
        return self._sessions.renewed(session) if session else None

    async def identity_of_session(self, cookie: str) -> Identity | None:
        """See `Auth`."""
        session = self._sessions.open(cookie)
        identity = await self.authenticate(session.token) if session else None
        if session is None or identity is None:
            return None
        expires = session.expires if identity.expires is None else min(session.expires, identity.expires)
        return Identity(identity.name, expires, session.token)

    async def _user(self, token: str) -> User | None:
        return await self._users.get(_digest(token), lambda: self._reviews.user_of(token))


def _ttl_of(verdict: object) -> float:
    return GOOD_S if verdict else BAD_S


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def expiry_of(token: str) -> float | None:
    """When a token says that it ends (JSON Web Tokens do); None if it does not say. Whether it is true: `Reviews`."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, KeyError, binascii.Error):
        return None
