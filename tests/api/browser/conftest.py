"""A real browser on the gateway's page: Chromium, told what to do over its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

START_S = 60.0
CALL_S = 60.0


@dataclass
class Page:
    """One tab. Remembers every request that it made and everything that it complained about."""

    socket: aiohttp.ClientWebSocketResponse
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _number: int = 0

    async def read(self) -> None:
        """Take what the browser says, until it is closed."""
        async for message in self.socket:
            record = json.loads(message.data)
            if "id" in record:
                self._answers.pop(record["id"]).set_result(record)
                continue
            self._note(record["method"], record.get("params") or {})

    def _note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol."""
        record = await self._ask(method, params)
        assert "error" not in record, record
        result: dict[str, Any] = record["result"]
        return result

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(CALL_S):
            record: dict[str, Any] = await answer
        return record

    async def open(self, url: str) -> None:
        """Go somewhere and wait until it is loaded."""
        async with self._another_document():
            await self.call("Page.navigate", url=url)

    @asynccontextmanager
    async def _another_document(self) -> AsyncIterator[None]:
        """Wait, after the block, until another document than that before it is there as a whole.

        Events of loads tell not which document was loaded: it may still be the one before.
        """
        await self.js("window.isBefore = true")
        yield
        is_there = "location.href !== 'about:blank' && !window.isBefore && document.readyState === 'complete'"
        async with asyncio.timeout(CALL_S):
            while True:  # in between there is no document, and so an error
                record = await self._ask("Runtime.evaluate", {"expression": is_there, "returnByValue": True})
                if record.get("result", {}).get("result", {}).get("value") is True:
                    return
                await asyncio.sleep(0.02)

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self, name: str) -> str:
        """What stands in one of the page's places."""
        return str(await self.js(f"document.querySelector('[data-value=\"{name}\"]')?.textContent ?? ''"))

    async def sign_in(self, token: str) -> None:
        """Fill in the form and send it, as a person would."""
        async with self._another_document():
            await self.js("document.querySelector('input[name=token]').focus()")
            await self.call("Input.insertText", text=token)
            await self.js("document.querySelector('form button').click()")

    async def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))


async def _port_of(directory: Path, process: asyncio.subprocess.Process) -> int:
    path = directory / "DevToolsActivePort"
    async with asyncio.timeout(START_S):
        while not path.exists() or not path.read_text().strip():
            assert process.returncode is None, "the browser ended at its start"
            await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A tab of a fresh browser, which reaches this machine and nothing else."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="rollout-browser-", ignore_cleanup_errors=True) as name:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments += ["--remote-debugging-port=0", f"--user-data-dir={name}", "--window-size=1200,1400"]
        arguments += ["--no-first-run", "--disable-background-networking", "--hide-scrollbars", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            port = await _port_of(Path(name), process)
            async with aiohttp.ClientSession() as session, _tab(session, port) as found:
                yield found
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


class _tab:  # noqa: N801 - used as a function
    """A new tab, while the block runs."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._port = port

    async def __aenter__(self) -> Page:
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            url = (await answer.json())["webSocketDebuggerUrl"]
        self._socket = await self._session.ws_connect(url, max_msg_size=0)
        page = Page(self._socket)
        self._reading = asyncio.create_task(page.read())
        for domain in ("Page", "Network", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        return page

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
