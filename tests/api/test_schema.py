"""The schema is the contract: it is sound, and whatever is sent is answered as it says."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rollout_api.app import create_app
from rollout_api.auth import NoAuth, TokenAuth
from rollout_api.serve import bind, serving
from rollout_cli.local.job_file import JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_contract.spec import parse_manifest
from rollout_stream.aio import AsyncSession, Control
from rollout_stream.settings import JobSettings

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA: dict[str, Any] = create_app(
    store=LocalStore(JobFile(Path("nowhere"))),
    stream=AsyncSession.connect("redis://localhost"),
    auth=NoAuth(),
).openapi()
OPERATIONS = [
    (method, path, operation) for path, item in SCHEMA["paths"].items() for method, operation in item.items()
]
IDS = [f"{method.upper()} {path}" for method, path, _ in OPERATIONS]
JOB = {"namespace": "default", "name": "cartpole"}


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside of a JSON value."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from nodes(item)


def component(name: str) -> dict[str, Any]:
    """A component as a schema of its own, with what it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": SCHEMA["components"]}


def test_every_reference_is_there() -> None:
    for node in nodes(SCHEMA):
        if isinstance(reference := node.get("$ref"), str):
            assert reference.removeprefix("#/components/schemas/") in SCHEMA["components"]["schemas"], (
                reference
            )


@pytest.mark.parametrize("name", sorted(SCHEMA["components"]["schemas"]))
def test_components_are_schemas_and_their_examples_fit(name: str) -> None:
    schema = SCHEMA["components"]["schemas"][name]
    jsonschema_rs.meta.validate(schema | {"components": SCHEMA["components"]})
    validator = jsonschema_rs.Draft202012Validator(component(name))
    for example in schema.get("examples", ()):
        if name not in ("ListMeta", "FaultBody"):
            validator.validate(example)


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=IDS)
def test_every_operation_is_described(method: str, path: str, operation: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z_]+", operation["operationId"])
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    for code, response in operation["responses"].items():
        assert response["description"]
        if code in ("default", "401", "404", "409", "412", "422"):
            assert list(response["content"]) == ["application/problem+json"]
    if path not in ("/healthz", "/readyz"):
        assert {"401", "403"} <= set(operation["responses"])
        assert "security" not in operation
    for parameter in operation.get("parameters", ()):
        assert parameter["description"] or parameter["schema"]["description"]


def test_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names) == 22


def test_a_fresh_gateway_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rollout_api.app import create_app; from rollout_api.auth import NoAuth\n"
        "from rollout_stream.aio import AsyncSession\n"
        "create_app(store=None, stream=AsyncSession.connect('redis://localhost'), auth=NoAuth())\n"
        "print([m for m in ('torch', 'numpy', 'tensordict', 'gymnasium', 'kubernetes') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"


@contextmanager
def gateway_in_a_thread(
    directory: Path, redis_server: Any, manifest: dict[str, Any], token: str
) -> Iterator[str]:
    """The URL of a gateway whose event loop is not the test's: the fuzzer's client blocks."""
    ready, stop, url = threading.Event(), threading.Event(), []

    async def run() -> None:
        job = parse_manifest(
            JobFile(directory).create(parse_manifest(manifest).to_document(), uid=str(uuid.uuid4()))
        )
        async with AsyncSession.connect(redis_server.url, password=redis_server.password) as stream:
            control = Control(stream, job.ref)
            await control.open_job(JobSettings(uid=job.ref.uid, seed=7, total_frames=1000))
            app = create_app(store=LocalStore(JobFile(directory)), stream=stream, auth=TokenAuth(token))
            async with serving(app, bind("127.0.0.1", 0), grace_s=1.0) as found:
                url.append(found)
                ready.set()
                await asyncio.to_thread(stop.wait, 600)
            await control.delete()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert ready.wait(60)
        yield url[0]
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param(m, p, id=i)
        for (m, p, _), i in zip(OPERATIONS, IDS, strict=True)
        if not p.endswith("/events")
    ],
)
def test_whatever_is_sent_is_answered_as_the_schema_says(
    method: str, path: str, tmp_path: Path, redis_server: Any, manifest: dict[str, Any], token: str
) -> None:
    operation = schemathesis.openapi.from_dict(SCHEMA)[path][method.upper()]
    fixed = {name: value for name, value in JOB.items() if f"{{{name}}}" in path}
    known = {} if "version" in path or not fixed else {"path_parameters": fixed}
    cases = st.one_of(
        operation.as_strategy(GenerationMode.POSITIVE, **known),
        operation.as_strategy(GenerationMode.POSITIVE),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )
    with gateway_in_a_thread(tmp_path, redis_server, manifest, token) as url:

        @settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def fuzz(case: schemathesis.Case) -> None:
            answer = case.call(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60)
            case.validate_response(answer, checks=CHECKS)

        fuzz()


def test_the_committed_document_is_the_one_that_is_served(app: FastAPI) -> None:
    committed = Path(__file__).parents[2] / "docs" / "openapi.json"
    is_same = json.loads(committed.read_text(encoding="utf-8")) == json.loads(json.dumps(app.openapi()))
    assert is_same, "the interface has changed: run `python docs/write_openapi.py` and look at the difference"
