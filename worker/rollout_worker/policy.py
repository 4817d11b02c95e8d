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

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution

from rollout_contract.errors import ConfigurationError, PolicyError
from rollout_contract.spec import Exploration
from rollout_worker.envs.specs import Composite

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Key = tuple[str, ...]
Views = Mapping[Key, Tensor]
"""The leaves of one block by their keys, each `[num_envs, num_steps, *shape]`."""

ACTION: Key = ("action",)
LOG_PROB: Key = ("log_prob",)

_exploration: ContextVar[Exploration] = ContextVar("exploration", default=Exploration.RANDOM)


def exploration_type() -> Exploration:
    """How actions are to be taken from a distribution, for policies that sample themselves."""
    return _exploration.get()


@contextmanager
def set_exploration_type(exploration: Exploration) -> Iterator[None]:
    """Take actions this way within the block."""
    token = _exploration.set(exploration)
    try:
        yield
    finally:
        _exploration.reset(token)


def sample(distribution: Distribution, exploration: Exploration) -> Tensor:
    """An action of the distribution. `Deterministic` is the mode where there is one, else the mean."""
    match exploration:
        case Exploration.RANDOM:
            return distribution.sample()
        case Exploration.MEAN:
            return distribution.mean
        case Exploration.MODE:
            return distribution.mode
        case Exploration.MEDIAN:
            return distribution.icdf(torch.tensor(0.5))
        case Exploration.DETERMINISTIC:
            try:
                return distribution.mode
            except NotImplementedError:
                return distribution.mean


class BlockPolicy(Protocol):
    """What the collector calls."""

    outputs: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]
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
        self.outputs: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]] = (
            stands_in_for.outputs if stands_in_for is not None else {}
        )

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
        self.exploration = exploration
        self.num_envs = num_envs
        self._actions = {key: tuple(spec.shape) for key, spec in action_spec.leaves()}
        self._observation_keys = tuple(key for key, _ in observation_spec.leaves())
        self._call = _caller_of(policy, self._observation_keys, exploration)
        self.outputs: Mapping[Key, tuple[torch.dtype, tuple[int, ...]]] = self._find_outputs(observation_spec)

    def act(self, views: Views, start: int, stop: int) -> None:
        """Call the policy for step `start` (`stop` is `start + 1`), and write what it returns."""
        observation = {key: views[key][:, start] for key in self._observation_keys}
        result = self._run(observation)
        for key, value in result.items():
            leaf = views.get(key)
            if leaf is None:
                raise PolicyError(
                    f"the policy returned {_dotted(key)!r}, which it did not return at the start"
                )
            target = leaf[:, start]
            if target.shape != value.shape:
                value = self._fitted(key, value, tuple(target.shape))
            target.copy_(value)

    def _run(self, observation: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        if self.device.type != "cpu":
            observation = {k: v.to(self.device, non_blocking=True) for k, v in observation.items()}
        token = _exploration.set(self.exploration)
        try:
            with torch.no_grad():
                return self._call(observation)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"the policy raised {type(error).__name__}: {error}\n{user_frames(error)}"
            ) from error
        finally:
            _exploration.reset(token)

    def _find_outputs(self, observation_spec: Composite) -> dict[Key, tuple[torch.dtype, tuple[int, ...]]]:
        """Call the policy once on zeros, leaving the random state as it was, to learn what it records."""
        state = torch.get_rng_state()
        zeros = {key: spec.zero((self.num_envs,)) for key, spec in observation_spec.leaves()}
        try:
            result = self._run(zeros)
        finally:
            torch.set_rng_state(state)
        for key, shape in self._actions.items():
            action = result.pop(key, None)
            if action is None:
                raise ConfigurationError(
                    f"the policy returned {sorted(map(_dotted, result))}, but no {_dotted(key)!r}"
                )
            self._fitted(key, action, (self.num_envs, *shape))
        for key, value in result.items():
            if value.ndim == 0 or value.shape[0] != self.num_envs:
                raise ConfigurationError(
                    f"the policy's output {_dotted(key)!r} has shape {list(value.shape)}: "
                    f"its first dimension must be the number of environments ({self.num_envs})"
                )
        return {key: (value.dtype, tuple(value.shape[1:])) for key, value in result.items()}

    def _fitted(self, key: Key, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`value` seen in the leaf's shape, if only dimensions of size 1 differ."""
        if value.numel() == torch.Size(shape).numel() and value.ndim > 0 and value.shape[0] == self.num_envs:
            return value.reshape(shape)
        raise ConfigurationError(
            f"the policy's {_dotted(key)!r} has shape {list(value.shape)} for {self.num_envs} environments; "
            f"expected {list(shape)}"
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


_Call = Callable[[Mapping[Key, Tensor]], dict[Key, Tensor]]


def _caller_of(
    policy: Callable[..., Any], observation_keys: tuple[Key, ...], exploration: Exploration
) -> _Call:
    target = policy.forward if isinstance(policy, torch.nn.Module) else policy
    names = _parameter_names(target)
    if hasattr(policy, "in_keys") and hasattr(policy, "out_keys"):
        return lambda observation: _call_with_tensordict(policy, observation)
    if names in (["td"], ["tensordict"]):
        return lambda observation: _call_with_tensordict(policy, observation)
    by_name = {_dotted(k).replace(".", "_"): k for k in observation_keys} | {
        k[-1]: k for k in observation_keys
    }
    unknown = [n for n in names if n not in by_name]
    if unknown or not names:
        raise ConfigurationError(
            f"the policy's parameters are {names}, the observation has {sorted(map(_dotted, observation_keys))}: "
            "name each parameter after a part of the observation, or take one parameter named 'tensordict'"
        )
    keys = [by_name[n] for n in names]
    return lambda observation: _as_leaves(policy(*[observation[k] for k in keys]), exploration)


def _parameter_names(target: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(target).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]


def _call_with_tensordict(policy: Callable[..., Any], observation: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    from tensordict import TensorDict, TensorDictBase

    num_envs = next(iter(observation.values())).shape[0]
    data = TensorDict(batch_size=[num_envs])
    for key, value in observation.items():
        data.set(key, value)
    returned = policy(data)
    result = returned if isinstance(returned, TensorDictBase) else data
    return {k: v for k, v in _items(result) if k not in observation}


def _as_leaves(returned: object, exploration: Exploration) -> dict[Key, Tensor]:
    match returned:
        case Tensor():
            return {ACTION: returned}
        case Distribution():
            action = sample(returned, exploration)
            return {ACTION: action, LOG_PROB: returned.log_prob(action)}
        case _ if _is_tensordict(returned):
            return dict(_items(returned))
        case Mapping():
            leaves = {(k,) if isinstance(k, str) else tuple(k): v for k, v in returned.items()}
            return {k: v for k, v in leaves.items() if isinstance(v, Tensor)}
    raise PolicyError(
        f"the policy returned a {type(returned).__name__}: it must be a tensor (the action), a dict of tensors with an "
        "'action', or a torch Distribution"
    )


def _is_tensordict(value: object) -> TypeGuard[TensorDictBase]:
    """Without loading tensordict: a value of its class cannot come from a module that is not loaded."""
    module = sys.modules.get("tensordict")
    return module is not None and isinstance(value, module.TensorDictBase)


def _items(data: TensorDictBase) -> Iterator[tuple[Key, Tensor]]:
    for key, value in data.items(include_nested=True, leaves_only=True):
        yield (key,) if isinstance(key, str) else tuple(key), value


def _dotted(key: Key) -> str:
    return ".".join(key)


def user_frames(error: BaseException) -> str:
    """The traceback from the first frame outside of this module on: the user's code last."""
    lines = traceback.TracebackException.from_exception(error)
    lines.stack = traceback.StackSummary.from_list([f for f in lines.stack if f.filename != __file__])
    return "".join(lines.format()).rstrip()
