"""Writes the gateway's interface, as its routes make it, into `docs/openapi.json`. A test holds the two together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rollout_api.app import create_app
from rollout_api.auth import NoAuth
from rollout_api.store import JobStore
from rollout_stream.aio import AsyncSession

TARGET = Path(__file__).with_name("openapi.json")


def document() -> dict[str, Any]:
    """The OpenAPI document. Neither the store nor the session is asked for anything."""
    app = create_app(
        store=cast(JobStore, None), stream=AsyncSession.connect("redis://localhost"), auth=NoAuth()
    )
    return app.openapi()


def text_of(openapi: dict[str, Any]) -> str:
    """As it is written: sorted, so that a change shows as such."""
    return json.dumps(openapi, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text_of(document()), encoding="utf-8")
