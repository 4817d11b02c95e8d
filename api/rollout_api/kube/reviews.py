"""Who has a token, and what they may do: asked of the API server, in one of two ways. Keeps nothing.

`DelegatedReviews` asks with the gateway's own account, which needs two rights for it, cluster-wide. `SelfReviews` asks with
the caller's token, as `kubectl auth whoami` and `kubectl auth can-i` do, and needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rollout_api.identity import Action
from rollout_api.kube.client import Document, KubernetesClient, Request
from rollout_api.store import NotKnown, StoreUnavailable
from rollout_contract import names

AUTHENTICATION: Final = "authentication.k8s.io/v1"
AUTHORIZATION: Final = "authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class User:
    """Whom the cluster knows by a token."""

    name: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Reviews(Protocol):
    """Questions to the cluster. StoreUnavailable where it does not answer."""

    async def user_of(self, token: str) -> User | None:
        """Who has this token; None: nobody (any more)."""
        ...

    async def may(self, user: User, token: str, action: Action) -> bool:
        """Whether the cluster's rules let them."""
        ...


class DelegatedReviews:
    """TokenReview and SubjectAccessReview."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    async def user_of(self, token: str) -> User | None:
        """See `Reviews`."""
        status = await self._ask(AUTHENTICATION, "TokenReview", {"token": token})
        return _user(status.get("user")) if status.get("authenticated") is True else None

    async def may(self, user: User, token: str, action: Action) -> bool:
        """See `Reviews`."""
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": attributes_of(action),
        }
        return _is_allowed(await self._ask(AUTHORIZATION, "SubjectAccessReview", spec))

    async def _ask(self, version: str, kind: str, spec: Document) -> Document:
        try:
            return await _asked(self._client, version, kind, spec, token=None)
        except NotKnown as error:  # the gateway's own token, not the caller's
            raise StoreUnavailable("the Kubernetes API does not take the gateway's account") from error


class SelfReviews:
    """SelfSubjectReview and SelfSubjectAccessReview."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    async def user_of(self, token: str) -> User | None:
        """See `Reviews`."""
        try:
            status = await _asked(self._client, AUTHENTICATION, "SelfSubjectReview", None, token=token)
        except NotKnown:
            return None
        return _user(status.get("userInfo"))

    async def may(self, user: User, token: str, action: Action) -> bool:
        """See `Reviews`."""
        spec = {"resourceAttributes": attributes_of(action)}
        try:
            return _is_allowed(
                await _asked(self._client, AUTHORIZATION, "SelfSubjectAccessReview", spec, token=token)
            )
        except NotKnown:
            return False


async def _asked(
    client: KubernetesClient, version: str, kind: str, spec: Document | None, *, token: str | None
) -> Document:
    """The `status` of a review. It changes nothing, so it may be asked twice."""
    body: Document = {"apiVersion": version, "kind": kind}
    if spec is not None:
        body["spec"] = spec
    request = Request("POST", f"/apis/{version}/{kind.lower()}s", body=body, is_repeatable=True)
    status = (await client.call(request, token=token)).get("status")
    return status if isinstance(status, dict) else {}


def attributes_of(action: Action) -> dict[str, str]:
    """An action in the words of an access review."""
    resource, _, part = action.resource.partition("/")
    found = {
        "group": names.GROUP_NAME,
        "verb": action.verb,
        "resource": resource,
        "subresource": part,
        "namespace": action.namespace,
        "name": action.name,
    }
    return {key: value for key, value in found.items() if value}


def _user(info: Any) -> User | None:
    if not isinstance(info, dict) or not info.get("username"):
        return None
    extra = {str(key): [str(v) for v in values or ()] for key, values in (info.get("extra") or {}).items()}
    return User(
        str(info["username"]), str(info.get("uid") or ""), [str(g) for g in info.get("groups") or ()], extra
    )


def _is_allowed(status: Document) -> bool:
    return status.get("allowed") is True and status.get("denied") is not True
