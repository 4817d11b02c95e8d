"""Who is asking, and what they want to do. Plain values; handed from the middleware to routes, auth and store."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody wants to do, in the words of Kubernetes' RBAC. Empty namespace: in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking. `expires` (seconds since 1970) ends what hangs on it; None: does not expire.

    `token` is what a store presents to act with this caller's rights; empty where no store needs one.
    """

    name: str
    expires: float | None = None
    token: str = field(default="", repr=False)
