"""Jobs over the Kubernetes API: what is asked, with whose token, and what its answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from rollout_api.identity import Identity
from rollout_api.kube import client
from rollout_api.kube.client import KubernetesClient, Request, without_credentials
from rollout_api.kube.errors import Expired, error_of
from rollout_api.kube.store import KubernetesStore
from rollout_api.store import (
    AlreadyExists,
    Conflict,
    Forbidden,
    JobStore,
    LabelSelector,
    NotFound,
    NotKnown,
    PageExpired,
    Refused,
    StoreUnavailable,
    Unknown,
)
from rollout_contract.errors import SpecError
from rollout_contract.spec import parse_manifest

PATH = "/apis/rolloutjob.dev/v1alpha1/namespaces/rl/rolloutjobs"
CALLER = Identity("caller", token="token-of-the-caller")
ANY = LabelSelector()


@pytest.fixture
def store(kube: KubernetesClient) -> KubernetesStore:
    return KubernetesStore(kube).acting_for(CALLER)


def copy_of(document: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document))
    found["metadata"].update(metadata)
    return found


def event(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": document}


class TestWhoseRights:
    """Every call for a caller has that caller's token and nothing of ours."""

    async def test_calls_have_the_callers_token(
        self, store: KubernetesStore, server: Any, stored: dict[str, Any]
    ) -> None:
        server.respond = lambda call: (200, stored)
        job = await store.get("rl", "cartpole")
        await store.create(job)
        await store.patch("rl", "cartpole", {"spec": {"replicas": 2}}, resource_version="7")
        await store.delete("rl", "cartpole")
        assert {call.token for call in server.calls} == {CALLER.token}

    async def test_without_a_caller_nothing_is_asked(
        self, kube: KubernetesClient, server: Any, stored: dict[str, Any]
    ) -> None:
        nobody = KubernetesStore(kube)
        job = parse_manifest(stored)
        for call in (
            nobody.get("rl", "cartpole"),
            nobody.list(None, selector=ANY, limit=1),
            nobody.create(job),
            nobody.patch("rl", "cartpole", {}, resource_version="7"),
            nobody.delete("rl", "cartpole"),
            anext(nobody.watch("rl", "cartpole")),
            KubernetesStore(kube)
            .acting_for(Identity("x", token="a\r\nimpersonate-user: admin"))
            .get("rl", "x"),
        ):
            with pytest.raises(NotKnown):
                await call
        assert server.calls == []

    async def test_the_callers_way_in_carries_no_credential_of_ours(
        self, configuration: Configuration
    ) -> None:
        configuration.cert_file, configuration.key_file = "client.crt", "client.key"
        configuration.username, configuration.password = "admin", "secret"
        bare = without_credentials(configuration)
        assert (bare.host, bare.ssl_ca_cert) == (configuration.host, configuration.ssl_ca_cert)
        assert not bare.cert_file
        assert not bare.key_file
        assert not bare.api_key
        assert not bare.username
        assert not bare.password

    async def test_the_check_is_our_own(self, kube: KubernetesClient, server: Any, own_token: str) -> None:
        server.answers = [(200, {"resources": [{"name": "rolloutjobs"}]}), (200, {"resources": []})]
        await KubernetesStore(kube).check()
        assert [call.token for call in server.calls] == [own_token]
        with pytest.raises(StoreUnavailable, match="knows no RolloutJobs"):
            await KubernetesStore(kube).check()

    async def test_no_token_shows(self, store: KubernetesStore) -> None:
        assert isinstance(store, JobStore)
        assert CALLER.token not in repr(store) + repr(CALLER)


async def test_a_page_of_a_list(store: KubernetesStore, server: Any, stored: dict[str, Any]) -> None:
    newer = copy_of(stored, name="newer")
    newer["spec"]["invented"] = 1
    item = copy_of(stored)
    del item["apiVersion"], item["kind"]
    server.respond = lambda call: (200, {"items": [item, newer], "metadata": {"continue": "next"}})
    page = await store.list("rl", selector=LabelSelector.parse("team=rl"), limit=2, continue_token="here")
    (call,) = server.calls
    assert (call.path, call.query) == (PATH, {"limit": "2", "labelSelector": "team=rl", "continue": "here"})
    assert [job.metadata.name for job in page.jobs] == ["cartpole"]
    assert (page.continue_token, page.unknown) == ("next", ["rl/newer"])


async def test_a_list_of_all_namespaces(store: KubernetesStore, server: Any) -> None:
    server.respond = lambda call: (200, {"items": [], "metadata": {}})
    assert not (await store.list(None, selector=ANY, limit=5)).jobs
    assert (server.calls[0].path, server.calls[0].query) == (
        "/apis/rolloutjob.dev/v1alpha1/rolloutjobs",
        {"limit": "5"},
    )


async def test_a_page_that_is_too_old(store: KubernetesStore, server: Any) -> None:
    server.respond = lambda call: (410, {"message": "too old", "reason": "Expired"})
    with pytest.raises(PageExpired):
        await store.list("rl", selector=ANY, limit=1, continue_token="old")


async def test_a_job_that_we_do_not_understand_is_not_shown_as_another(
    store: KubernetesStore, server: Any, stored: dict[str, Any]
) -> None:
    stored["spec"]["invented"] = 1
    server.respond = lambda call: (200, stored)
    with pytest.raises(Unknown, match=r"rl/cartpole .*spec\.invented"):
        await store.get("rl", "cartpole")


@pytest.mark.parametrize("dry_run", [False, True])
async def test_create(store: KubernetesStore, server: Any, stored: dict[str, Any], dry_run: bool) -> None:
    server.respond = lambda call: (201, stored)
    await store.create(parse_manifest(stored), dry_run=dry_run)
    (call,) = server.calls
    query = {"fieldManager": "rollout-gateway", "fieldValidation": "Strict"}
    assert (call.method, call.path) == ("POST", PATH)
    assert call.query == (query | {"dryRun": "All"} if dry_run else query)
    assert call.body["metadata"] == {"name": "cartpole", "namespace": "rl", "labels": {"team": "rl"}}
    assert "status" not in call.body


async def test_patch_holds_the_version(store: KubernetesStore, server: Any, stored: dict[str, Any]) -> None:
    server.respond = lambda call: (200, stored)
    patch = {"spec": {"replicas": 2}, "metadata": {"labels": {"a": None}}, "status": {"state": "Complete"}}
    await store.patch("rl", "cartpole", patch, resource_version="7")
    (call,) = server.calls
    assert (call.method, call.path, call.content_type) == (
        "PATCH",
        PATH + "/cartpole",
        "application/merge-patch+json",
    )
    assert call.body == {
        "spec": {"replicas": 2},
        "metadata": {"labels": {"a": None}, "resourceVersion": "7"},
    }


async def test_delete_means_the_job_that_was_answered(
    store: KubernetesStore, server: Any, stored: dict[str, Any]
) -> None:
    server.respond = lambda call: (200, stored)
    job = await store.delete("rl", "cartpole", resource_version="6")
    assert server.calls[-1].body["preconditions"] == {"uid": job.metadata.uid, "resourceVersion": "6"}


class TestErrors:
    """The server's refusals in our words."""

    @pytest.mark.parametrize(
        ("status", "body", "kind"),
        [
            pytest.param(401, {"message": "Unauthorized"}, NotKnown, id="token"),
            pytest.param(403, {"message": "rolloutjobs is forbidden"}, Forbidden, id="rights"),
            pytest.param(404, {"message": "x not found", "details": {"name": "x"}}, NotFound, id="gone"),
            pytest.param(404, {"message": "could not find the resource"}, StoreUnavailable, id="no CRD"),
            pytest.param(404, "404 page not found\n", StoreUnavailable, id="no group"),
            pytest.param(409, {"reason": "AlreadyExists", "message": "x"}, AlreadyExists, id="exists"),
            pytest.param(409, {"reason": "Conflict", "message": "x"}, Conflict, id="changed"),
            pytest.param(410, {"reason": "Expired", "message": "x"}, Expired, id="too old"),
            pytest.param(422, {"message": "x"}, SpecError, id="invalid"),
            pytest.param(400, {"message": 'admission webhook "x" denied it'}, Refused, id="webhook"),
            pytest.param(429, {"message": "later"}, StoreUnavailable, id="busy"),
            pytest.param(503, "upstream is away", StoreUnavailable, id="proxy"),
            pytest.param(418, None, Refused, id="teapot"),
        ],
    )
    def test_kinds(self, status: int, body: Any, kind: type[Exception]) -> None:
        assert type(error_of(status, body, {})) is kind

    def test_every_fault_has_its_path(self) -> None:
        causes = [
            {"field": "spec.replicas", "message": "Invalid value: -1"},
            {"field": "<nil>", "message": "some validation rules were not checked"},
        ]
        error = error_of(422, {"message": "all", "details": {"causes": causes}}, {})
        assert isinstance(error, SpecError)
        assert [(fault.path, fault.message) for fault in error.faults] == [
            ("spec.replicas", "Invalid value: -1"),
            ("", "some validation rules were not checked"),
        ]

    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"Retry-After": "5"}, 5.0),
            ({"Retry-After": "900"}, 60.0),
            ({}, None),
            ({"Retry-After": "x"}, None),
        ],
    )
    def test_when_to_come_again(self, headers: dict[str, str], seconds: float | None) -> None:
        error = error_of(429, {}, headers)
        assert isinstance(error, StoreUnavailable)
        assert error.retry_after_s == seconds

    async def test_reads_are_tried_again_and_changes_are_not(
        self, store: KubernetesStore, server: Any, stored: dict[str, Any]
    ) -> None:
        server.answers = [(503, "starting"), (200, stored)]
        assert (await store.get("rl", "cartpole")).metadata.name == "cartpole"
        server.answers = [(503, "starting"), (200, stored)]
        with pytest.raises(StoreUnavailable):
            await store.patch("rl", "cartpole", {"spec": {}}, resource_version="7")
        assert len(server.answers) == 1

    async def test_a_server_that_is_away(self, configuration: Configuration) -> None:
        configuration.host = "http://127.0.0.1:9"
        async with KubernetesClient(configuration) as away:
            with pytest.raises(StoreUnavailable) as caught:
                await away.call(Request("GET", "/version"))
        assert "127.0.0.1" not in str(caught.value)

    async def test_something_else_answers(self, kube: KubernetesClient, server: Any) -> None:
        server.respond = lambda call: (200, "<html>welcome</html>")
        with pytest.raises(StoreUnavailable, match="no JSON object"):
            await kube.call(Request("GET", "/version"))


async def test_a_flood_of_questions_about_strangers_holds_nobody_else_up(
    kube: KubernetesClient, server: Any, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(client.MAX_IN_FLIGHT):
        await kube._own_slots.acquire()
    server.respond = lambda call: (200, stored)
    assert await KubernetesStore(kube).acting_for(CALLER).get("rl", "cartpole")
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    with pytest.raises(StoreUnavailable, match="too many calls"):
        await kube.call(Request("GET", "/version"))


class TestWatch:
    """The job as it is, and what becomes of it."""

    async def collected(self, store: KubernetesStore) -> list[tuple[str, bool]]:
        return [
            (str(change.job.metadata.resource_version), change.is_deleted)
            async for change in store.watch("rl", "cartpole")
        ]

    async def test_goes_on_over_ends_and_bookmarks(
        self, store: KubernetesStore, server: Any, stored: dict[str, Any]
    ) -> None:
        bookmark = {"kind": "RolloutJob", "metadata": {"resourceVersion": "20"}}
        server.answers = [
            (200, stored),
            [event("MODIFIED", copy_of(stored, resourceVersion="8")), event("BOOKMARK", bookmark)],
            [],
            [event("DELETED", copy_of(stored, resourceVersion="21"))],
        ]
        assert await self.collected(store) == [("7", False), ("8", False), ("21", True)]
        watches = [call.query for call in server.calls if call.query.get("watch")]
        assert [query["resourceVersion"] for query in watches] == ["7", "20", "20"]
        assert {query["fieldSelector"] for query in watches} == {"metadata.name=cartpole"}

    @pytest.mark.parametrize(
        "too_old",
        [
            pytest.param((410, {"message": "too old"}), id="at its start"),
            pytest.param([event("ERROR", {"code": 410, "message": "too old"})], id="in the middle"),
        ],
    )
    async def test_reads_anew_where_the_version_is_too_old(
        self, store: KubernetesStore, server: Any, stored: dict[str, Any], too_old: Any
    ) -> None:
        fresh = copy_of(stored, resourceVersion="30")
        server.answers = [(200, stored), too_old, (200, fresh), [event("DELETED", fresh)]]
        assert await self.collected(store) == [("7", False), ("30", False), ("30", True)]

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            pytest.param((403, {"message": "no"}), Forbidden, id="rights were taken"),
            pytest.param((401, {"message": "no"}), NotKnown, id="token has expired"),
            pytest.param((503, {"message": "no"}), StoreUnavailable, id="server is away"),
            pytest.param(["no event"], StoreUnavailable, id="nonsense"),
        ],
    )
    async def test_says_why_it_ends(
        self, store: KubernetesStore, server: Any, stored: dict[str, Any], answer: Any, kind: type[Exception]
    ) -> None:
        server.answers = [(200, stored), answer]
        with pytest.raises(kind):
            await self.collected(store)

    async def test_a_job_that_is_not_there(self, store: KubernetesStore, server: Any) -> None:
        server.respond = lambda call: (404, {"message": "not found", "details": {"name": "cartpole"}})
        with pytest.raises(NotFound):
            await self.collected(store)
