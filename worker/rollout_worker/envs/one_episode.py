"""The wrapper around an environment that resets itself; `autoreset.ordinary` decides who gets one."""

from __future__ import annotations

from typing import Any

import gymnasium

from rollout_worker.envs.autoreset import FINAL_OBSERVATION, NEXT_STEP, SAME_STEP, final_observation, layers


class OneEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that resets itself, as an ordinary one: episodes begin at `reset` alone.

    `mode` is what the environment declares; None where that is still to be seen. An environment whose next episode
    begins at random should declare its mode: before it is known, the first such step is taken from an observation
    that the environment has not given out.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], mode: str | None) -> None:
        super().__init__(env)
        self._mode = mode
        self._watch = _ResetWatch(env)
        self._waiting: tuple[Any, dict[str, Any]] | None = None
        self._has_ended = False
        self._last_action: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: the one that the environment begins by itself, unless a seed or options ask for another."""
        waiting, self._waiting = self._waiting, None
        after_end, self._has_ended = self._has_ended, False
        if seed is None and not options:
            if waiting is not None:
                return waiting
            if after_end and self._mode == NEXT_STEP:
                observation, _, _, _, info = self.env.step(self._last_action)
                return observation, info
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act. A step that only began an episode is taken again, with the same action."""
        before = self._watch.count
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)
        has_ended = bool(result[2]) or bool(result[3])
        if self._watch.count > before and not has_ended:
            self._mode = NEXT_STEP
            before = self._watch.count
            result = self.env.step(action)
            has_ended = bool(result[2]) or bool(result[3])
        self._last_action, self._has_ended = action, has_ended
        if has_ended and (self._mode == SAME_STEP or self._watch.count > before):
            self._mode = SAME_STEP
            return self._last_of_episode(result)
        return result

    def _last_of_episode(
        self, result: tuple[Any, Any, bool, bool, dict[str, Any]]
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The step as it was before the reset within it; what the reset gave waits for the caller's reset."""
        observation, reward, terminated, truncated, info = result
        last = final_observation(info)
        beside = {
            name: value for name, value in info.items() if name not in (*FINAL_OBSERVATION, "final_info")
        }
        self._waiting = (observation, beside)
        return last, reward, terminated, truncated, info.get("final_info", beside)


class _ResetWatch:
    """Counts the resets of an environment's layers, whoever calls them."""

    def __init__(self, env: Any) -> None:
        self.count = 0
        for layer in layers(env):
            own = getattr(layer, "__dict__", {}).get("reset")
            if hasattr(layer, "__dict__") and (own is None or isinstance(own, _CountedReset)):
                layer.reset = _CountedReset(layer, self)


class _CountedReset:
    """A layer's own `reset`, counted. An object, so that a copy of the environment calls the copy's."""

    def __init__(self, layer: Any, watch: _ResetWatch) -> None:
        self._layer, self._watch = layer, watch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.count += 1
        return type(self._layer).reset(self._layer, *args, **kwargs)
