"""What the kinds of others that the chart writes may hold, as far as the chart uses them: strict, so that a typo is seen.

Test clusters do not have these definitions. Written from the references of the Gateway API and the Prometheus Operator (v1).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
TEXT = {"type": "string", "minLength": 1}


def record(required: str = "", /, **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(item: Schema, least: int = 1) -> Schema:
    """A list."""
    return {"type": "array", "items": item, "minItems": least}


def texts() -> Schema:
    """A map of texts."""
    return {"type": "object", "additionalProperties": {"type": "string"}}


KEY = record("name key", name=NAME, key=TEXT)
SELECTOR = record("matchLabels", matchLabels=texts())
ENDPOINT = record(
    "port",
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval=DURATION,
    scheme={"enum": ["http", "https"]},
    authorization=record("credentials", credentials=KEY, type=TEXT),
    tlsConfig=record(ca=record("secret", secret=KEY), serverName=TEXT),
)
RULE = record("alert expr", alert=TEXT, expr=TEXT, labels=texts(), annotations=texts(), **{"for": DURATION})
SPECS: dict[tuple[str, str], Schema] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): record(
        "parentRefs rules",
        parentRefs=many(record("name", group=TEXT, kind=TEXT, namespace=NAME, name=NAME, sectionName=NAME, port=PORT)),
        hostnames=many({"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}),
        rules=many(record("backendRefs", backendRefs=many(record("name port", name=NAME, port=PORT)))),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): record(
        "selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=many(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): record(
        "selector endpoints", selector=SELECTOR, endpoints=many(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): record(
        "groups", groups=many(record("name rules", name=TEXT, rules=many(RULE)))
    ),
}  # fmt: skip
"""The `spec` of each kind."""
