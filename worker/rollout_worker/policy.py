"""Policies as the collector calls them: one method that reads a step's observations and writes its actions in place.

`open_policy` looks at what the user's entrypoint made and picks the way to call it. The collector knows only `BlockPolicy`.
What a policy may be:

- a TensorDict module (has `in_keys` and `out_keys`), or a callable whose only parameter is named `td` or `tensordict`:
  called with a TensorDict of batch size `[num_envs]`, whose `action` (and other new keys) it sets;
- any other callable: called with one tensor per parameter, taken by name from the observation (as in
  `def forward(self, observation)`). It returns the action, a dict with an `action` (and more leaves to record), or a
  `torch.distributions.Distribution`, of which the action is taken as `exploration` says and `log_prob` recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rollout_contract.errors import ConfigurationError, PolicyError
from rollout_contract.spec import Exploration
from rollout_worker.entrypoints import user_traceback
from rollout_worker.envs.describe import Key
from rollout_worker.envs.specs import Binary, Composite, LeafSpec, MultiOneHot, OneHot, Spec
from rollout_worker.exploration import exploration_type as exploration_type
from rollout_worker.exploration import set_exploration_type as set_exploration_type
from rollout_worker.policy_calls import caller_of, dotted

Views = Mapping[Key, Tensor]
"""The leaves of one block by their keys, each `[num_envs, num_steps, *shape]`."""
Outputs = Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]
"""What a policy records beside the action: dtype and shape of one frame."""


class BlockPolicy(Protocol):
    """What the collector calls."""

    outputs: Outputs
    """What it records beside the action: key → dtype and shape of one frame."""
    is_open_loop: bool
    """Whether its actions do not depend on observations, so that many steps' can be written at once."""

    def act(self, views: Views, start: int, stop: int) -> None:
        """Write actions (and outputs) of the steps `start..stop-1`; one step at a time unless `is_open_loop`."""


class RandomPolicy:
    """Draws from the action spec, whatever is observed. Outputs of another policy that it stands in for are zero."""

    is_open_loop = True

    def __init__(self, action_spec: Composite, *, stands_in_for: BlockPolicy | None = None) -> None:
        self._leaves = tuple(action_spec.leaves())
        self.outputs: Outputs = stands_in_for.outputs if stands_in_for is not None else {}

    def act(self, views: Views, start: int, stop: int) -> None:
        """Draw the actions of all environments for the steps `start..stop-1`, step by step.

        One draw per step, so that the data does not depend on how many steps are asked for at once.
        """
        for step in range(start, stop):
            for key, spec in self._leaves:
                column = views[key][:, step]
                column.copy_(spec.rand(column.shape[:1]))
            for key in self.outputs:
                views[key][:, step] = 0


class ModulePolicy:
    """The user's policy, called once per step with all environments at once, without gradients."""

    is_open_loop = False

    def __init__(
        self,
        policy: Callable[..., Any],
        *,
        observation_spec: Composite,
        action_spec: Composite,
        num_envs: int,
        exploration: Exploration,
        device: torch.device,
    ) -> None:
        self.module = policy
        self.device = device
        self._no_grad = torch.no_grad()
        self._exploring = set_exploration_type(exploration)
        self.num_envs = num_envs
        self._actions = dict(action_spec.leaves())
        self._observation_keys = tuple(key for key, _ in observation_spec.leaves())
        self._call = caller_of(policy, self._observation_keys, exploration)
        self.outputs: Outputs = self._find_outputs(observation_spec)
        self._keys = self._actions.keys() | self.outputs.keys()

    def act(self, views: Views, start: int, stop: int) -> None:
        """Call the policy for step `start` (`stop` is `start + 1`), and write what it returns."""
        observation = {key: views[key][:, start] for key in self._observation_keys}
        result = self._run(observation)
        if result.keys() != self._keys:
            now, before = (sorted(map(dotted, keys)) for keys in (result, self._keys))
            raise PolicyError(
                f"the policy returned {now}, but {before} at the start: it must be the same each time"
            )
        for key, value in result.items():
            target = views[key][:, start]
            if target.shape != value.shape:
                value = self._fitted(key, value, tuple(target.shape))
            target.copy_(value)

    def _run(self, observation: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        if self.device.type != "cpu":
            observation = {k: v.to(self.device, non_blocking=True) for k, v in observation.items()}
        try:
            with self._no_grad, self._exploring:  # made once: a step is short
                return self._call(observation)
        except ConfigurationError:
            raise
        except Exception as error:
            raise PolicyError(
                f"the policy raised {type(error).__name__}: {error}\n{user_traceback(error)}"
            ) from error

    def _find_outputs(self, observation_spec: Composite) -> Outputs:
        """Call the policy once on zeros, leaving the random state as it was, to learn what it records."""
        state = torch.get_rng_state()
        zeros = {key: spec.zero((self.num_envs,)) for key, spec in observation_spec.leaves()}
        try:
            result = self._run(zeros)
        finally:
            torch.set_rng_state(state)
        for key, spec in self._actions.items():
            action = result.pop(key, None)
            if action is None:
                raise ConfigurationError(
                    f"the policy returned {sorted(map(dotted, result))}, but no {dotted(key)!r}"
                )
            self._fitted(key, action, (self.num_envs, *spec.shape))
            _check_dtype(key, action, spec)
        for key, value in result.items():
            if value.ndim == 0 or value.shape[0] != self.num_envs:
                raise ConfigurationError(
                    f"the policy's output {dotted(key)!r} has shape {list(value.shape)}: "
                    f"its first dimension must be the number of environments ({self.num_envs})"
                )
        return {key: (value.dtype, tuple(value.shape[1:])) for key, value in result.items()}

    def _fitted(self, key: Key, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`value` seen in the leaf's shape, if only dimensions of size 1 differ."""
        if value.numel() == torch.Size(shape).numel() and value.ndim > 0 and value.shape[0] == self.num_envs:
            return value.reshape(shape)
        raise ConfigurationError(
            f"the policy's {dotted(key)!r} has shape {list(value.shape)} for {self.num_envs} environments; "
            f"expected {list(shape)}"
        )


def _check_dtype(key: Key, action: Tensor, spec: Spec) -> None:
    """Fractions would be cut off in silence. Zeros and ones are the same as floats, which distributions give."""
    if not isinstance(spec, LeafSpec) or isinstance(spec, OneHot | MultiOneHot | Binary):
        return
    if action.dtype.is_floating_point and not spec.dtype.is_floating_point:
        raise ConfigurationError(
            f"the policy's {dotted(key)!r} is {action.dtype}, the action spec is {spec.dtype}: return whole numbers, such "
            "as the indices that logits.argmax(-1) or Categorical(logits=logits).sample() give"
        )


def open_policy(
    policy: object,
    *,
    observation_spec: Composite,
    action_spec: Composite,
    num_envs: int,
    exploration: Exploration = Exploration.RANDOM,
    device: torch.device | None = None,
) -> BlockPolicy:
    """A policy that the collector can call; None gives `RandomPolicy`. ConfigurationError says what does not fit."""
    if policy is None:
        return RandomPolicy(action_spec)
    if not callable(policy):
        raise ConfigurationError(f"a policy must be callable, not a {type(policy).__name__}")
    return ModulePolicy(
        policy,
        observation_spec=observation_spec,
        action_spec=action_spec,
        num_envs=num_envs,
        exploration=exploration,
        device=device or torch.device("cpu"),
    )
