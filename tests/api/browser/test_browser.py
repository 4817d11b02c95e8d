"""The page in a real browser: signing in, live numbers, and nothing from anywhere else."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rollout_cli.local.job_file import JobFile
from rollout_stream.aio import Control

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONDITIONS = [
    ("Accepted", "True", "SpecValid", ""),
    ("RedisReady", "True", "Connected", ""),
    (
        "WorkersReady",
        "False",
        "ImagePullBackOff",
        "default-1: example.registry/rollout-worker@sha256:6f1c not found",
    ),
    ("Ready", "False", "WorkersNotReady", ""),
    ("Complete", "False", "InProgress", ""),
    ("Failed", "False", "InProgress", ""),
]


@pytest.fixture
async def busy_job(control: Control, job_file: JobFile, send_beat: Any) -> Control:
    """A job in the middle of its work."""
    run = control.session.client.execute_command
    await run("HSET", control._keys.counters, "frames", 42_000, "episodes", 400, "acked_frames", 40_000)
    for number in range(1, 401):
        value = 20.0 + 450.0 / (1.0 + math.exp((200 - number) / 40)) + 25.0 * math.sin(number)
        record = {
            "return": value,
            "length": int(value),
            "policy_version": number // 40,
            "worker": "default/0",
            "frames": number * 105,
        }
        await run("RPUSH", control._keys.episodes, json.dumps(record))
    for index in range(4):
        await send_beat(
            control,
            index=index,
            frames=10_500 - 7 * index,
            frames_per_second=1234.0 + index,
            policy_version=9 + (index != 2),
            last_error="ValueError: the environment returned NaN in step 1000" if index == 2 else "",
        )
    since = "2026-01-01T10:00:00Z"
    job_file.write_status(
        {
            "state": "Running",
            "readyWorkers": "3/4",
            "conditions": [
                {
                    "type": t,
                    "status": s,
                    "reason": r,
                    "message": m,
                    "lastTransitionTime": since,
                    "observedGeneration": 1,
                }
                for t, s, r, m in CONDITIONS
            ],
            "lastFailure": {
                "group": "default",
                "worker": 2,
                "attempt": 0,
                "container": "worker",
                "exitCode": 1,
                "reason": "Error",
                "message": 'ValueError: the environment returned NaN\n  File "env.py", line 12, in step',
                "time": since,
            },
        }
    )
    return control


async def test_a_visit(
    page: Any, base_url: str, token: str, busy_job: Control, job_file: JobFile, send_beat: Any, until: Any
) -> None:
    await page.open(base_url + "/")
    assert await page.js("document.querySelector('h2').textContent") == "Sign in"
    await page.sign_in("not the token")
    assert "not valid" in await page.js("document.querySelector('[role=alert]').textContent")
    await page.sign_in(token)
    assert "default/cartpole" in await page.js("document.querySelector('h2').textContent")
    assert await page.text("frames") == "42,000"
    assert token not in await page.js("document.documentElement.outerHTML + document.cookie + location.href")

    async def is_live() -> bool:
        return bool(await page.text("link") == "live")

    await until(is_live)
    await busy_job.session.client.execute_command("HSET", busy_job._keys.counters, "frames", 50_001)
    await send_beat(busy_job, index=0, frames=18_501, frames_per_second=9000.0, policy_version=10)

    async def has_new_numbers() -> bool:
        return bool(await page.text("frames") == "50,001")

    await until(has_new_numbers)
    # by now the event stream has filled it in anew, in the words of the interface
    assert await page.text("failed") == "default-2, attempt 0, exit code 1"
    conditions = await page.js("document.querySelector('[data-rows=conditions]').innerText")
    assert conditions.count("2026-01-01T10:00:00Z") == len(CONDITIONS)
    if directory := os.environ.get("SCREENSHOTS"):
        await page.screenshot(Path(directory) / "job.png")
    job_file.write_status({"state": "Complete", "conditions": []})

    async def is_complete() -> bool:
        return bool(await page.text("state") == "Complete")

    await until(is_complete)

    async def has_worker_row() -> bool:
        rows = "document.querySelector('[data-rows=workers]').innerText"
        return "18,501" in str(await page.js(rows))

    await until(has_worker_row)

    hosts = {urlsplit(url).netloc for url in page.requests if not url.startswith("data:")}
    assert hosts == {urlsplit(base_url).netloc}
    assert not [url for url in page.requests if token in url]
    # a refused sign-in and the first view are errors to the browser: nothing else is
    unexpected = [text for text in page.complaints if "401 (Unauthorized)" not in text]
    assert unexpected == []


async def test_what_is_not_from_the_page_does_not_run(
    page: Any, base_url: str, token: str, busy_job: Control, until: Any
) -> None:
    await page.open(base_url + "/")
    await page.sign_in(token)
    await page.js(
        """(() => {
        const script = document.createElement('script');
        script.textContent = 'window.wasRun = true';
        document.body.append(script);
        const image = document.createElement('img');
        image.src = 'http://127.0.0.2:9/x.png';
        image.setAttribute('onerror', 'window.wasRun = true');
        document.body.append(image);
        })()"""
    )
    outside = await page.js("fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'refused')")
    assert outside == "refused"
    assert await page.js("window.wasRun ?? false") is False

    def refusals() -> list[str]:
        return [text for text in page.complaints if "Content Security Policy" in text]

    await until(lambda: len(refusals()) >= 3)  # the browser tells them when it comes to it


async def test_signed_out_without_a_cookie(page: Any, base_url: str, token: str, busy_job: Control) -> None:
    await page.open(base_url + "/")
    await page.sign_in(token)
    assert await page.js("document.cookie") == ""  # scripts cannot read it
    await page.call("Network.clearBrowserCookies")
    await page.open(base_url + "/")
    assert await page.js("document.querySelector('h2').textContent") == "Sign in"
    if directory := os.environ.get("SCREENSHOTS"):
        await page.screenshot(Path(directory) / "login.png")
