"""Callers by the API server's word: both ways to ask, how long a verdict holds, and the page's cookie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_api.errors import Problem
from rollout_api.identity import Action, Identity
from rollout_api.kube.auth import BAD_S, GOOD_S, KubernetesAuth, expiry_of
from rollout_api.kube.client import KubernetesClient
from rollout_api.kube.reviews import DelegatedReviews, SelfReviews, User, attributes_of
from rollout_api.kube.sessions import SealedSessions
from rollout_api.settings import SettingsError
from rollout_api.store import StoreUnavailable

GET = Action("get", "rolloutjobs/weights", "rl", "cartpole")
USER = {"username": "ada", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}


class TestReviews:
    """What is asked of the server."""

    async def test_with_our_own_account(self, kube: KubernetesClient, server: Any, own_token: str) -> None:
        server.answers = [
            (201, {"status": {"authenticated": True, "user": USER}}),
            (201, {"status": {"allowed": True}}),
        ]
        reviews = DelegatedReviews(kube)
        user = await reviews.user_of("token")
        assert user == User("ada", "1", ["g"], {"k": ["v"]})
        assert await reviews.may(user, "token", GET)
        who, what = server.calls
        assert [call.token for call in server.calls] == [own_token] * 2
        assert who.path == "/apis/authentication.k8s.io/v1/tokenreviews"
        assert who.body["spec"] == {"token": "token"}
        assert what.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert what.body["spec"] == {
            "user": "ada",
            "uid": "1",
            "groups": ["g"],
            "extra": {"k": ["v"]},
            "resourceAttributes": {
                "group": "rolloutjob.dev",
                "verb": "get",
                "resource": "rolloutjobs",
                "subresource": "weights",
                "namespace": "rl",
                "name": "cartpole",
            },
        }

    async def test_with_the_callers_token(self, kube: KubernetesClient, server: Any) -> None:
        server.answers = [(201, {"status": {"userInfo": USER}}), (201, {"status": {"allowed": True}})]
        reviews = SelfReviews(kube)
        user = await reviews.user_of("token")
        assert user is not None
        assert await reviews.may(user, "token", GET)
        assert [call.token for call in server.calls] == ["token"] * 2
        assert [call.path.rpartition("/")[2] for call in server.calls] == [
            "selfsubjectreviews",
            "selfsubjectaccessreviews",
        ]

    @pytest.mark.parametrize("kind", [DelegatedReviews, SelfReviews])
    @pytest.mark.parametrize(
        "status",
        [
            pytest.param({}, id="nothing"),
            pytest.param({"allowed": "yes"}, id="no truth value"),
            pytest.param({"allowed": True, "denied": True}, id="allowed and denied"),
            pytest.param({"allowed": False, "reason": "no"}, id="not allowed"),
        ],
    )
    async def test_only_a_clear_yes_is_one(
        self, kube: KubernetesClient, server: Any, kind: Any, status: dict[str, Any]
    ) -> None:
        server.respond = lambda call: (201, {"status": status})
        assert not await kind(kube).may(User("ada"), "token", GET)

    @pytest.mark.parametrize(
        ("kind", "answer"),
        [
            pytest.param(DelegatedReviews, (201, {"status": {"error": "expired"}}), id="delegated: expired"),
            pytest.param(
                DelegatedReviews,
                (201, {"status": {"authenticated": True, "user": {}}}),
                id="delegated: nameless",
            ),
            pytest.param(
                DelegatedReviews,
                (201, {"status": {"authenticated": False, "user": USER}}),
                id="delegated: not authenticated",
            ),
            pytest.param(SelfReviews, (401, {"message": "Unauthorized"}), id="self: refused"),
            pytest.param(SelfReviews, (201, {"status": {"userInfo": {}}}), id="self: nameless"),
        ],
    )
    async def test_nobody(self, kube: KubernetesClient, server: Any, kind: Any, answer: Any) -> None:
        server.respond = lambda call: answer
        assert await kind(kube).user_of("token") is None

    async def test_an_account_of_ours_that_is_refused_is_our_trouble(
        self, kube: KubernetesClient, server: Any
    ) -> None:
        server.respond = lambda call: (401, {"message": "Unauthorized"})
        with pytest.raises(StoreUnavailable, match="the gateway's account"):
            await DelegatedReviews(kube).user_of("token")

    def test_in_all_namespaces(self) -> None:
        assert attributes_of(Action("list", "rolloutjobs")) == {
            "group": "rolloutjob.dev",
            "verb": "list",
            "resource": "rolloutjobs",
        }


@dataclass
class FakeReviews:
    """Knows tokens and rights; counts what it was asked."""

    users: dict[str, User] = field(default_factory=dict)
    allowed: set[Action] = field(default_factory=set)
    asked: list[object] = field(default_factory=list)
    is_away: bool = False

    async def user_of(self, token: str) -> User | None:
        await self._ask(token)
        return self.users.get(token)

    async def may(self, user: User, token: str, action: Action) -> bool:
        await self._ask(action)
        return action in self.allowed

    async def _ask(self, what: object) -> None:
        self.asked.append(what)
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("the Kubernetes API does not answer")


@pytest.fixture
def reviews() -> FakeReviews:
    return FakeReviews(users={"good-token": User("ada")}, allowed={GET})


@pytest.fixture
def now() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def auth(reviews: FakeReviews, now: list[float]) -> KubernetesAuth:
    sessions = SealedSessions("k" * 32, clock=lambda: now[0])
    return KubernetesAuth(reviews, sessions, clock=lambda: now[0])


class TestVerdicts:
    """Kept for seconds, never longer."""

    async def test_many_at_once_are_one_question(self, auth: KubernetesAuth, reviews: FakeReviews) -> None:
        found = await asyncio.gather(*(auth.authenticate("good-token") for _ in range(50)))
        assert {identity.name for identity in found if identity} == {"ada"}
        assert await asyncio.gather(*(auth.may(Identity("ada", token="good-token"), GET) for _ in range(50)))
        assert reviews.asked == ["good-token", GET]

    async def test_a_token_that_was_taken_away(
        self, auth: KubernetesAuth, reviews: FakeReviews, now: list[float]
    ) -> None:
        identity = await auth.authenticate("good-token")
        assert identity is not None
        assert await auth.may(identity, GET)
        reviews.users.clear()
        assert await auth.may(identity, GET)
        now[0] += GOOD_S
        assert await auth.authenticate("good-token") is None
        assert not await auth.may(identity, GET)

    async def test_a_right_that_was_given(
        self, auth: KubernetesAuth, reviews: FakeReviews, now: list[float]
    ) -> None:
        identity, action = Identity("ada", token="good-token"), Action("delete", "rolloutjobs", "rl")
        assert not await auth.may(identity, action)
        reviews.allowed.add(action)
        assert not await auth.may(identity, action)
        now[0] += BAD_S
        assert await auth.may(identity, action)

    async def test_a_server_that_is_away_says_neither_yes_nor_no(
        self, auth: KubernetesAuth, reviews: FakeReviews
    ) -> None:
        reviews.is_away = True
        with pytest.raises(StoreUnavailable):
            await auth.authenticate("good-token")
        reviews.is_away = False
        assert await auth.authenticate("good-token")

    @pytest.mark.parametrize("token", [None, "", "a b", "a\r\nb", "ü", "x" * 8193])
    async def test_what_cannot_be_a_token_is_not_asked_about(
        self, auth: KubernetesAuth, reviews: FakeReviews, token: str | None
    ) -> None:
        assert await auth.authenticate(token) is None
        assert not await auth.may(Identity("x", token=token or ""), GET)
        assert reviews.asked == []

    async def test_a_token_that_has_expired(
        self, auth: KubernetesAuth, reviews: FakeReviews, now: list[float], make_jwt: Callable[..., str]
    ) -> None:
        token = make_jwt(exp=now[0] + 5)
        reviews.users[token] = User("ada")
        identity = await auth.authenticate(token)
        assert identity is not None
        assert identity.expires == now[0] + 5
        assert await auth.may(identity, GET)
        now[0] += 5  # before what is kept has grown old
        assert await auth.authenticate(token) is None
        assert not await auth.may(identity, GET)

    @pytest.mark.parametrize("token", ["a.b", "a.b.c", "a.e30.c", "a.W10.c", "..", "a.eyJleHAiOiJ4In0.c"])
    def test_tokens_that_do_not_say_when_they_end(self, token: str) -> None:
        assert expiry_of(token) is None


class TestSessions:
    """The token in a cookie: sealed, short-lived."""

    async def test_a_visit(self, auth: KubernetesAuth, reviews: FakeReviews, now: list[float]) -> None:
        cookie = await auth.open_session("good-token")
        assert cookie is not None
        assert "good-token" not in cookie
        identity = await auth.identity_of_session(cookie)
        assert identity == Identity("ada", now[0] + auth.session_s, "good-token")
        assert await auth.may(identity, GET)
        now[0] += auth.session_s
        assert await auth.identity_of_session(cookie) is None

    async def test_a_session_ends_with_its_token(
        self, auth: KubernetesAuth, reviews: FakeReviews, now: list[float], make_jwt: Callable[..., str]
    ) -> None:
        token = make_jwt(exp=now[0] + 60)
        reviews.users[token] = User("ada")
        cookie = await auth.open_session(token)
        identity = await auth.identity_of_session(cookie or "")
        assert identity is not None
        assert identity.expires == now[0] + 60
        now[0] += 60
        assert await auth.identity_of_session(cookie or "") is None

    async def test_it_is_renewed_while_it_is_used_but_not_for_ever(
        self, auth: KubernetesAuth, now: list[float]
    ) -> None:
        cookie, begun = await auth.open_session("good-token"), now[0]
        while cookie is not None:
            assert now[0] <= begun + 12 * 3600
            last, cookie = cookie, await auth.renew_session(cookie)
            now[0] += 600
        assert now[0] > begun + 11 * 3600
        assert await auth.identity_of_session(last) is None

    @pytest.mark.parametrize("cookie", ["", "x", "gAAAAA", "1.1.99999999999.ab.00", "ü" * 50])
    async def test_what_we_did_not_make_opens_nothing(self, auth: KubernetesAuth, cookie: str) -> None:
        assert await auth.identity_of_session(cookie) is None
        assert await auth.renew_session(cookie) is None

    def test_keys(self) -> None:
        cookie = SealedSessions("k" * 32).new("token")
        assert SealedSessions("k" * 32).open(cookie) is not None  # another replica
        assert SealedSessions("l" * 32).open(cookie) is None
        assert SealedSessions().open(cookie) is None
        with pytest.raises(SettingsError, match="ROLLOUT_SESSION_KEY"):
            SealedSessions("short")

    async def test_somebody_unknown_gets_none(self, auth: KubernetesAuth) -> None:
        assert await auth.open_session("wrong-token") is None

    def test_a_token_that_no_cookie_can_hold(self) -> None:
        with pytest.raises(Problem, match="too many for the page"):
            SealedSessions().new("x" * 4000)
