"""Run in a pod: an API server for external metrics, with the one metric of examples/cluster/autoscaling.yaml.

What prometheus-adapter does with a Prometheus, over the gateway's own text: the room in a job's stream.
"""

import json
import os
import re
import ssl
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BASE = "/apis/external.metrics.k8s.io/v1beta1"
METRIC = "rollout_stream_room_frames"
GATEWAY, TOKEN, LIMIT = os.environ["GATEWAY"], os.environ["TOKEN"], int(os.environ["LIMIT"])


def unacked(job: str) -> float:
    request = urllib.request.Request(f"{GATEWAY}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        text = reply.read().decode()
    found = re.search(rf'^rollout_unacked_frames{{job="{job}",namespace="[^"]+"}} (\S+)$', text, re.MULTILINE)
    found = found or re.search(
        rf'^rollout_unacked_frames{{namespace="[^"]+",job="{job}"}} (\S+)$', text, re.MULTILINE
    )
    return float(found[1])


def answer(path: str, query: dict[str, list[str]]) -> dict:
    if path == BASE:
        resource = {"name": METRIC, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": BASE.removeprefix("/apis/"),
            "resources": [{**resource, "verbs": ["get"]}],
        }
    job = query["labelSelector"][0].removeprefix("job=")
    value = {
        "metricName": METRIC,
        "metricLabels": {"job": job},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": str(round(LIMIT - unacked(job))),
    }
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": BASE.removeprefix("/apis/"),
        "metadata": {},
        "items": [value],
    }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        try:
            body, status = answer(url.path.rstrip("/"), urllib.parse.parse_qs(url.query)), 200
        except Exception as error:
            body, status = {"kind": "Status", "apiVersion": "v1", "message": repr(error), "code": 503}, 503
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server = ThreadingHTTPServer(("", 8443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
