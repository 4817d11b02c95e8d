"""The commands' HTTP client against a small server that answers what a test wants."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rollout_cli.client import Client
from rollout_cli.errors import GatewayError


class Answering(BaseHTTPRequestHandler):
    """Answers every request with the server's `answer`, and keeps what came."""

    def respond(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = respond  # noqa: N815 - the base class looks for these names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        server.seen, server.answer = [], (200, {}, b"{}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(server: HTTPServer) -> Client:
    return Client(f"http://127.0.0.1:{server.server_port}", "s3cret")


def test_requests_carry_token_query_and_body(server, client):
    server.answer = (200, {}, b'{"a": 1}')

    assert client.get("/x", limit=5) == {"a": 1}
    client.put("/y", {"seed": 7})
    client.post("/z")
    client.upload("/w", io.BytesIO(b"bytes"), 5, headers={"X-Checksum-Sha256": "abc"})

    (get, put, post, upload) = server.seen
    assert get[:2] == ("GET", "/x?limit=5")
    assert get[2]["Authorization"] == "Bearer s3cret"
    assert (put[0], json.loads(put[3]), put[2]["Content-Type"]) == ("PUT", {"seed": 7}, "application/json")
    assert post[::3] == ("POST", b"")
    assert (upload[3], upload[2]["X-Checksum-Sha256"]) == (b"bytes", "abc")


def test_a_body_is_written_to_a_file(server, client):
    server.answer = (200, {"ETag": '"1"'}, b"\0" * 3_000_000)
    target = io.BytesIO()

    headers = client.download("/weights", target)

    assert (len(target.getvalue()), headers["ETag"]) == (3_000_000, '"1"')


PROBLEM = {
    "type": "urn:x",
    "title": "The manifest is wrong",
    "detail": "2 faults",
    "errors": [{"path": "spec.seed", "message": "too small"}],
}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        pytest.param(
            422, json.dumps(PROBLEM).encode(), ["422", "2 faults", "spec.seed: too small"], id="problem"
        ),
        pytest.param(500, b"<html>", ["500"], id="no problem document"),
        pytest.param(502, b"[]", ["502"], id="another document"),
        pytest.param(401, b"{}", ["401", "--token-file"], id="no token"),
    ],
)
def test_an_error_is_the_gateways_own_words(server, client, status, body, words):
    server.answer = (status, {}, body)

    with pytest.raises(GatewayError) as error:
        client.get("/x")

    assert error.value.status == status
    assert [w for w in words if w not in str(error.value)] == []
    assert "s3cret" not in str(error.value) + repr(client)


def test_an_answer_that_is_no_json(server, client):
    server.answer = (200, {}, b"hello")

    with pytest.raises(GatewayError, match="no JSON"):
        client.get("/x")


def test_the_token_does_not_follow_a_redirect(server, client):
    with HTTPServer(("127.0.0.1", 0), Answering) as other:
        other.seen, other.answer = [], (200, {}, b"{}")
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        server.answer = (302, {"Location": f"http://127.0.0.1:{other.server_port}/there"}, b"")
        client.get("/x")
        thread.join(60)

    assert "Authorization" not in other.seen[0][2]


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(server, client, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    assert client.get("/x") == {}
