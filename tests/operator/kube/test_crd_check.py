"""An older CRD: nothing is written, and the message says what is found, what is needed and what helps."""

from __future__ import annotations

import asyncio
import copy

import pytest
from fake_api import Fault

from rollout_operator.kube.api_errors import Patience
from rollout_operator.kube.crd_check import CrdCheck


@pytest.fixture
def check(api):
    return CrdCheck(api, every_s=0.02, retry_s=0.02)


async def test_the_crd_of_this_version(check):
    assert "not been looked at" in check.reason()
    await check.look()

    assert check.reason() == ""


@pytest.mark.probe("P-46")
@pytest.mark.parametrize(
    ("path", "missing"),
    [
        pytest.param(
            ("spec", "collector", "maxFramesPerTraj"), "spec.collector.maxFramesPerTraj", id="a field"
        ),
        pytest.param(("spec", "weights"), "spec.weights", id="a part"),
        pytest.param(("status", "seedEpoch"), "status.seedEpoch", id="of the status"),
    ],
)
async def test_a_crd_without_a_field_of_today(server, check, path, missing):
    server.schema = without(server.schema, path)
    await check.look()

    assert missing in check.reason()
    assert "found schema" in check.reason()
    assert "kubectl apply" in check.reason()


async def test_a_crd_with_more(server, check):
    server.schema = copy.deepcopy(server.schema)
    server.schema["properties"]["spec"]["properties"]["tomorrow"] = {"type": "string"}
    server.schema["description"] = "Schema 0000000000000000"
    await check.look()

    assert check.reason() == ""


async def test_a_crd_that_comes_later(server, check, running, until):
    schema, server.schema = server.schema, None
    waiting = running(check.wait())
    await until(lambda: "not installed" in check.reason())
    server.schema = schema

    await asyncio.wait_for(waiting, 60)
    assert check.reason() == ""


async def test_a_crd_that_goes_back_while_we_run(server, check, running, until):
    await check.wait()
    running(check.run())
    newest, server.schema = server.schema, without(server.schema, ("spec", "weights"))
    await until(check.reason, "the problem")
    server.schema = newest

    await until(lambda: not check.reason(), "the end of the problem")


@pytest.mark.parametrize("patience", [Patience(0.0)], ids=["at once"])
@pytest.mark.parametrize("status", [403, 500])
async def test_what_was_known_stays_while_nobody_answers(server, check, status):
    await check.look()
    server.faults.append(Fault("GET", "/openapi", status, {}, times=99))
    await check.look()

    assert check.reason() == ""


def without(schema, path):
    """The schema without the field at the path."""
    schema = copy.deepcopy(schema)
    node = schema
    for name in path[:-1]:
        node = node["properties"][name]
    del node["properties"][path[-1]]
    schema["description"] = "Schema 0000000000000000"
    return schema
