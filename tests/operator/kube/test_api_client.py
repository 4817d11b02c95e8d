"""Calls: what is tried again, what is not, and what an answer becomes."""

from __future__ import annotations

import pytest
from fake_api import Fault

from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError, ApiUnavailable, Patience, error_of
from rollout_operator.kube.resources import JOBS, PODS

POD = {"metadata": {"namespace": "rl", "name": "p"}}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_server_is_asked_again(server, api, status):
    server.faults.append(Fault("POST", "/pods", status, {"message": "busy"}, times=2))

    await api.call(PODS.create("rl", POD))

    assert [code for _, _, code in api.seen] == [str(status), str(status), "201"]


async def test_a_server_that_names_a_wait_is_given_it(server, api):
    server.faults.append(Fault("POST", "/pods", 429, {}, {"Retry-After": "1"}))

    await api.call(PODS.create("rl", POD))

    assert server.count("POST", "/pods") == 2


async def test_a_wait_that_is_too_long_is_left_to_the_queue(server, api):
    server.faults.append(Fault("POST", "/pods", 429, {}, {"Retry-After": "60"}, times=9))

    with pytest.raises(ApiError) as raised:
        await api.call(PODS.create("rl", POD))

    assert (raised.value.status, raised.value.retry_after_s) == (429, 60.0)
    assert server.count("POST", "/pods") == 1


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
async def test_a_refusal_is_not_repeated(server, api, status):
    server.faults.append(Fault("POST", "/pods", status, {"reason": "Because", "message": "no"}, times=9))

    with pytest.raises(ApiError, match=r"create /api/v1/namespaces/rl/pods: .* Because: no"):
        await api.call(PODS.create("rl", POD))

    assert server.count("POST", "/pods") == 1


async def test_an_answer_that_is_no_json_keeps_its_text(server, api):
    server.faults.append(Fault("GET", "/pods", 403, "a proxy says no"))

    with pytest.raises(ApiError, match="a proxy says no"):
        await api.call(PODS.get("rl", "p"))


async def test_a_server_that_is_away_is_waited_for(server, api, running, until):
    await server.stop()
    call = running(api.call(PODS.create("rl", POD)))
    await until(lambda: ("create", "pods", "0") in api.seen)
    await server.start()

    assert (await call)["metadata"]["name"] == "p"


async def test_a_server_that_stays_away(server, monkeypatch):
    await server.stop()
    async with KubernetesApi(patience=Patience(0.1)) as api:
        with pytest.raises(ApiUnavailable, match="get /api/v1/namespaces/rl/pods/p"):
            await api.call(PODS.get("rl", "p"))
    await server.start()


async def test_credentials_that_run_out_are_read_anew(server, api, tmp_path):
    server.create("pods", POD)
    server.token = "second"
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())

    assert (await api.call(PODS.get("rl", "p")))["metadata"]["name"] == "p"

    server.token = "third"
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())

    assert (await api.call(PODS.get("rl", "p")))["metadata"]["name"] == "p"
    assert ("get", "pods", "401") in api.seen


async def test_what_must_not_be_written_is_not_tried_again(server, api):
    server.faults.append(Fault("POST", "/pods", 500, {}, times=9))
    tries = []

    def gate():
        tries.append(1)
        if len(tries) == 2:
            raise ApiUnavailable("the lease is lost")

    with pytest.raises(ApiUnavailable, match="lease"):
        await api.call(PODS.create("rl", POD), before=gate)

    assert server.count("POST", "/pods") == 1


async def test_pages(server, api):
    server.page = 2
    for number in range(5):
        server.create("pods", {"metadata": {"namespace": "rl", "name": f"p{number}"}})

    found = [pod["metadata"]["name"] async for page in api.pages(PODS.list("rl")) for pod in page["items"]]

    assert found == ["p0", "p1", "p2", "p3", "p4"]


async def test_one_call_in_time(server, api):
    server.create("pods", POD)

    assert (await api.call_once(PODS.get("rl", "p"), timeout_s=60))["metadata"]["name"] == "p"


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason", "retry_after"),
    [
        pytest.param(409, {"reason": "AlreadyExists"}, {}, "AlreadyExists", None, id="json"),
        pytest.param(410, "", {}, "Expired", None, id="nothing"),
        pytest.param(503, {"details": {"retryAfterSeconds": 2}}, {}, "Error", 2.0, id="in the details"),
        pytest.param(429, {}, {"Retry-After": "soon"}, "Error", None, id="no number"),
    ],
)
def test_errors(status, body, headers, reason, retry_after):
    error = error_of("doing", status, body, headers)

    assert (error.reason, error.retry_after_s) == (reason, retry_after)


def test_where_things_are():
    assert PODS.path(None) == "/api/v1/pods"
    assert (
        JOBS.path("rl", "a", "status") == "/apis/rolloutjob.dev/v1alpha1/namespaces/rl/rolloutjobs/a/status"
    )
    assert JOBS.apply("rl", "a", {}, part="status").resource == "rolloutjobs/status"
