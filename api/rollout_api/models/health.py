"""The gateway itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollout_api.models.base import ApiModel, examples


class Health(ApiModel):
    """Whether the gateway, or what it needs, works."""

    model_config = examples({"status": "ok", "checks": {"store": "ok", "stream": "ok"}})

    status: Literal["ok", "failing"]
    checks: dict[str, str] = Field(default={})
    """What was asked, and `ok` or what is wrong."""
