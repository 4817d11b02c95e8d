"""Makes an ordinary gymnasium environment of one that resets itself, so that every frame is a real transition.

Some environments begin a new episode inside `step`: on the step after an end, ignoring that step's action
(`AutoresetMode.NEXT_STEP`), or in the very step that ended (`SAME_STEP`). Such a filler is no transition. What
`metadata["autoreset_mode"]` declares is believed; an environment that says nothing is watched, if its `step` mentions
a reset at all, and is understood when it first does it. All others are left as they are and cost nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

NEXT_STEP, SAME_STEP = "NextStep", "SameStep"

FINAL_OBSERVATION = ("final_obs", "final_observation", "terminal_observation")
"""Names under which an info holds the observation that a reset within the step has replaced."""


def ordinary(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment itself, or, for one that resets itself, a wrapper that begins episodes at `reset` alone."""
    declared = declared_mode(env)
    if declared is None and not any(_mentions_reset(layer) for layer in layers(env)):
        return env
    from rollout_worker.envs.one_episode import (
        OneEpisode,  # loads gymnasium, which such an environment has loaded
    )

    wrapped: gymnasium.Env[Any, Any] = OneEpisode(env, declared)
    return wrapped


def declared_mode(env: Any) -> str | None:
    """What an environment's metadata says of resetting itself: NextStep, SameStep or None."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    value = str(getattr(mode, "value", mode))
    return value if value in (NEXT_STEP, SAME_STEP) else None


def layers(env: Any) -> Iterator[Any]:
    """A wrapped environment from the outermost wrapper to the innermost environment."""
    while env is not None:
        yield env
        inner = env.__dict__.get("env") if hasattr(env, "__dict__") else None
        env = inner if inner is not env else None


def _mentions_reset(layer: Any) -> bool:
    code = getattr(getattr(type(layer), "step", None), "__code__", None)
    return code is not None and "reset" in code.co_names


def final_observation(info: Any) -> Any:
    """The observation that a reset within the step replaced. Raises KeyError where an info holds none."""
    for name in FINAL_OBSERVATION:
        if isinstance(info, dict) and name in info:
            return info[name]
    raise KeyError(
        "the environment resets itself in the step that ends an episode, and its info does not hold the last "
        f"observation: put it there as {FINAL_OBSERVATION[0]!r}, or leave the reset to the caller"
    )
