"""Returns and lengths of episodes."""

from __future__ import annotations

from rollout_api.models.base import ApiModel, examples


class Quantiles(ApiModel):
    """Of a number over the newest episodes."""

    mean: float
    min: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    max: float


class CurvePoint(ApiModel):
    """Some consecutive episodes as one point of a plot."""

    model_config = examples(
        {"frames": 40960, "episodes": 16, "meanReturn": 182.4, "meanLength": 182.4, "policyVersion": 40}
    )

    frames: int
    """Frames of the job when the last of them ended."""
    episodes: int
    mean_return: float
    mean_length: float
    policy_version: int
    """That made the last of them."""


class Episodes(ApiModel):
    """Returns and lengths of the newest episodes: their spread, and a curve."""

    total: int
    """Finished since the job began."""
    count: int
    """Newest ones that these numbers are of."""
    returns: Quantiles | None
    """Null without episodes."""
    lengths: Quantiles | None
    curve: list[CurvePoint]
