"""Versions of the policy's weights."""

from __future__ import annotations

from rollout_api.models.base import ApiModel, examples


class WeightsVersion(ApiModel):
    """One published version of the policy's weights."""

    model_config = examples(
        {
            "policyVersion": 118,
            "sizeBytes": 18904,
            "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "publishedAt": "2026-01-01T10:00:00Z",
            "publisher": "learner",
            "workers": 2,
        }
    )

    policy_version: int
    size_bytes: int
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""
    published_at: str | None = None
    publisher: str = ""
    workers: int
    """That act with it now."""


class WeightsList(ApiModel):
    """The versions that are kept, newest first."""

    latest_version: int
    """0: nothing was published."""
    initial_workers: int
    """Workers that still act with version 0, which the policy's entrypoint made."""
    items: list[WeightsVersion]


class Published(ApiModel):
    """What became of an upload."""

    model_config = examples(
        {
            "policyVersion": 119,
            "sizeBytes": 18904,
            "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        }
    )

    policy_version: int
    size_bytes: int
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""
