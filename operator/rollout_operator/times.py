"""Times as objects carry them (RFC 3339, UTC) and as the planner counts them (seconds since 1970). Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def to_seconds(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for None or an empty text. ValueError for anything else."""
    if not text:
        return None
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


def to_text(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, as every `…Time` field has it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
