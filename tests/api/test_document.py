"""`docs/gateway.md` says what there is: every route, problem and variable by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from rollout_api import environment
from rollout_api.app import api_routes
from rollout_api.errors import Kind
from rollout_contract import environ, podenv

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
ALIASES = {"/v1/namespaces/{namespace}/rolloutjobs": "/v1/namespaces/NAMESPACE/rolloutjobs"}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.slug)
def test_every_problem(kind: Kind) -> None:
    (row,) = re.findall(rf"^\| {kind.status} \| (.*) \|$", TEXT, re.MULTILINE)
    assert f"`{kind.slug}`" in row


def test_every_variable() -> None:
    source = "".join(Path(read.__file__).read_text(encoding="utf-8") for read in (environment, environ))
    variables = set(re.findall(r'"(ROLLOUT_[A-Z_]+)"', source)) | {podenv.REDIS_PASSWORD}
    assert variables == set(
        re.findall(r"`(ROLLOUT_[A-Z_]+)`", TEXT.partition("### Settings")[2].partition("### ")[0])
    )


def test_every_route(app: FastAPI) -> None:
    job = ALIASES["/v1/namespaces/{namespace}/rolloutjobs"] + "/NAME"
    for route in api_routes(app):
        path = route.path.replace("{namespace}", "NAMESPACE").replace("{name}", "NAME")
        path = path.replace("{version}", "VERSION").replace(job, "JOB")
        last = path.removeprefix("JOB")
        assert path in TEXT or f"`{last}`" in TEXT or path == "/login", path
