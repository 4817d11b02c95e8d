"""The page: signing in, the list, one job, what is in its policy, and that nothing in it is taken for markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import httpx2
import pytest

from rollout_api.models import CurvePoint, JobStatus, WorkerList
from rollout_api.store import JobPage
from rollout_api.web import render
from rollout_cli.local.job_file import JobFile
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_contract.status import Condition
from rollout_stream.aio import Control

VOID = {"meta", "link", "input", "line", "polyline", "br"}


class Page(HTMLParser):
    """What a browser would see: elements with attributes, and that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        self.texts = {name: found.strip() for name, found in self.texts.items()}
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        name = self.elements[-1][1].get("data-value") if self.elements else None
        if name:
            self.texts[name] = self.texts.get(name, "") + data


async def test_a_stranger_gets_the_form_and_then_the_page(
    stranger: httpx2.AsyncClient, token: str, job: RolloutJob, control: Control
) -> None:
    form = await stranger.get("/")
    assert form.status_code == 401
    elements = Page(form.text).elements
    assert ("form", {"method": "post", "action": "/login"}) in elements
    refused = await stranger.post("/login", data={"token": "wrong"})
    assert refused.status_code == 401
    assert "not valid" in refused.text
    assert "set-cookie" not in refused.headers
    signed_in = await stranger.post("/login", data={"token": f" {token}\n"})
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
    page = await stranger.get("/")  # the client keeps the cookie
    assert page.status_code == 200
    assert "default/cartpole" in page.text
    assert "rollout_session=" in page.headers["set-cookie"]  # each view renews it


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"token=x", "text/plain", 415),
        (b'{"token": "x"}', "application/json", 415),
        (b"token=" + b"x" * 20_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"a=1" for _ in range(100)), "application/x-www-form-urlencoded", 400),
        (b"", "application/x-www-form-urlencoded", 401),
        (b"token=%ff%fe", "application/x-www-form-urlencoded", 401),
    ],
)
async def test_what_is_no_sign_in(
    stranger: httpx2.AsyncClient, content: bytes, content_type: str, status: int
) -> None:
    answer = await stranger.post("/login", content=content, headers={"content-type": content_type})
    assert answer.status_code == status


async def test_the_page_shows_the_job(
    client: httpx2.AsyncClient, control: Control, job_file: JobFile, send_beat: Any
) -> None:
    await send_beat(control, frames_per_second=1234.0, policy_version=2, last_error="boom")
    await control.session.client.execute_command(
        "HSET", control._keys.counters, "frames", 25_000, "episodes", 2
    )
    for i in (1, 2):
        record = {
            "return": 100.0 * i,
            "length": 3,
            "policy_version": 1,
            "worker": "default/0",
            "frames": 1000 * i,
        }
        await control.session.client.execute_command("RPUSH", control._keys.episodes, json.dumps(record))
    job_file.write_status({"state": "Running", "readyWorkers": "1/2", "conditions": []})
    answer = await client.get("/?namespace=default&job=cartpole")
    page = Page(answer.text)
    found = {
        name: page.texts[name]
        for name in ("state", "frames", "total", "rate", "return", "seed", "y0", "y1", "x1")
    }
    assert found == {
        "state": "Running",
        "frames": "25,000",
        "total": "of 100,000",
        "rate": "1,234",
        "return": "150",
        "seed": "7",
        "y0": "100",
        "y1": "200",
        "x1": "2,000",
    }
    assert ("progress", {"max": "100", "value": "25.0", "aria-label": "Frames of the total"}) in page.elements
    points = next(attrs["points"] for tag, attrs in page.elements if tag == "polyline")
    assert points == "60.0,204.0 790.0,16.0"
    assert "boom" in answer.text


async def test_nothing_is_fetched_from_elsewhere(client: httpx2.AsyncClient, job: RolloutJob) -> None:
    answer = await client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    other = await client.get("/")
    assert nonce not in other.headers["content-security-policy"]
    page = Page(answer.text)
    for tag, attributes in page.elements:
        if tag in ("script", "style"):
            assert attributes["nonce"] == nonce
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action"):
            assert not (attributes.get(name) or "/").startswith(("http", "//"))
    assert "//" not in re.sub(r"// .*", "", answer.text.partition("<script")[2])


async def test_a_page_of_a_job_that_is_not_there(client: httpx2.AsyncClient, job: RolloutJob) -> None:
    assert (await client.get("/?namespace=default&job=other")).status_code == 404
    assert (await client.get("/?namespace=..%2F&job=cartpole")).status_code == 404
    assert (await client.get("/?job=cartpole")).status_code == 404


async def test_without_a_job_the_page_says_so(client: httpx2.AsyncClient) -> None:
    assert "There is no job." in (await client.get("/")).text


def test_no_text_is_taken_for_markup() -> None:
    evil = "\"><script>alert(1)</script><img src=x onerror=1>'&amp;"
    status = JobStatus(
        namespace=evil,
        name=evil,
        uid="",
        generation=1,
        suspend=False,
        ready_workers=evil,
        conditions=[
            Condition(
                type=evil,
                status="True",
                reason=evil,
                message=evil,
                last_transition_time="2026-01-01T10:00:00Z",
                observed_generation=1,
            )
        ],
        worker_groups=[],
        live=None,
    )
    text = render.job_page("nonce", status, WorkerList(items=[]), None, path=f"/v1/{evil}")
    page = Page(text)
    assert [tag for tag, _ in page.elements if tag in ("script", "img")] == ["script"]


def test_a_curve_that_is_flat_or_single() -> None:
    point = CurvePoint(frames=10, episodes=1, mean_return=5.0, mean_length=1.0, policy_version=0)
    assert 'points="425.0,110.0"' in render._chart([point])
    assert 'points=""' in render._chart([])


def test_a_list_of_jobs_links_to_each(make_manifest: Any) -> None:
    documents = [make_manifest(), make_manifest(suspend=True)]
    documents[1]["metadata"] = {"name": "other", "namespace": "rl"}
    jobs = JobPage([parse_manifest(d) for d in documents], "more", unknown=["rl/<newer>"])
    html = render.list_page("nonce", jobs)
    page = Page(html)
    assert "The first 2 are shown" in html
    assert "rl/&lt;newer&gt;" in html
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    assert links == ["/", "/?namespace=default&job=cartpole", "/?namespace=rl&job=other"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript engine on this machine")
def test_the_script_can_be_read() -> None:
    script = files("rollout_api.web").joinpath("page.js")
    subprocess.run(["node", "--check", str(script)], check=True, timeout=120)
