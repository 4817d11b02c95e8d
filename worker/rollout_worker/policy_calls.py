"""How a user's policy is called, with what it names of an observation or with a TensorDict, and what it returned by keys."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution

from rollout_contract.errors import ConfigurationError
from rollout_contract.spec import Exploration
from rollout_worker.envs.describe import Key
from rollout_worker.exploration import sample

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Call = Callable[[Mapping[Key, Tensor]], dict[Key, Tensor]]
"""From an observation, `[num_envs, *shape]` by key, to what the policy says of it, `[num_envs, *shape]` by key."""

ACTION: Key = ("action",)
LOG_PROB: Key = ("log_prob",)


def caller_of(
    policy: Callable[..., Any], observation_keys: tuple[Key, ...], exploration: Exploration
) -> Call:
    """The way to call a policy. ConfigurationError if its parameters are not what an observation has."""
    parameters = _parameters_of(policy)
    is_module = hasattr(policy, "in_keys") and hasattr(policy, "out_keys")
    if is_module or [p.name for p in parameters if p.is_needed] in (["td"], ["tensordict"]):
        return lambda observation: _call_with_tensordict(policy, observation)
    positional, named = _keys_for(parameters, observation_keys)
    if not named:
        return lambda observation: _as_leaves(policy(*[observation[key] for key in positional]), exploration)

    def call(observation: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        more = {name: observation[key] for name, key in named.items()}
        return _as_leaves(policy(*[observation[key] for key in positional], **more), exploration)

    return call


class _Parameter(NamedTuple):
    name: str
    is_needed: bool
    kind: inspect._ParameterKind = Parameter.POSITIONAL_OR_KEYWORD


def _parameters_of(policy: Callable[..., Any]) -> list[_Parameter]:
    """Those that can be given one value each; none for what does not tell."""
    whole = getattr(
        policy, "_orig_mod", policy
    )  # a compiled module takes anything, and passes it on to this one
    target = whole.forward if isinstance(whole, torch.nn.Module) else whole
    schema = getattr(target, "schema", None)  # a traced module has no signature
    if schema is not None:
        return [_Parameter(a.name, not a.has_default_value()) for a in schema.arguments if a.name != "self"]
    try:
        found = inspect.signature(target).parameters.values()
    except ValueError:  # written in C
        return []
    return [
        _Parameter(p.name, p.default is Parameter.empty, p.kind)
        for p in found
        if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]


def _keys_for(
    parameters: list[_Parameter], observation_keys: tuple[Key, ...]
) -> tuple[list[Key], dict[str, Key]]:
    """Which part of the observation goes to which parameter: by position, and by name.

    The only parameter takes the only part, whatever it is called. One with a default is given its part if there is one.
    """
    needed = [p for p in parameters if p.is_needed]
    positional = [p for p in needed if p.kind is not Parameter.KEYWORD_ONLY]
    if len(needed) == len(positional) == len(observation_keys) == 1:
        return list(observation_keys), {}
    by_name = {dotted(k).replace(".", "_"): k for k in observation_keys} | {
        k[-1]: k for k in observation_keys
    }
    if not needed or any(p.name not in by_name for p in needed):
        raise ConfigurationError(
            f"the policy's parameters are {[p.name for p in parameters]}, the observation has "
            f"{sorted(map(dotted, observation_keys))}: name each parameter after a part of the observation, or take one "
            "parameter named 'tensordict'"
        )
    more = (p for p in parameters if p not in positional and p.kind is not Parameter.POSITIONAL_ONLY)
    return [by_name[p.name] for p in positional], {p.name: by_name[p.name] for p in more if p.name in by_name}


def _call_with_tensordict(policy: Callable[..., Any], observation: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    from tensordict import TensorDict, TensorDictBase

    num_envs = next(iter(observation.values())).shape[0]
    data = TensorDict(batch_size=[num_envs])
    for key, value in observation.items():
        data.set(key, value)
    returned = policy(data)
    result = returned if isinstance(returned, TensorDictBase) else data
    return {k: v for k, v in _leaves_of_tensordict(result) if k not in observation}


def _as_leaves(returned: object, exploration: Exploration) -> dict[Key, Tensor]:
    match returned:
        case Tensor():
            return {ACTION: returned}
        case Distribution():
            action = sample(returned, exploration)
            return {ACTION: action, LOG_PROB: returned.log_prob(action)}
        case _ if _is_tensordict(returned):
            return dict(_leaves_of_tensordict(returned))
        case Mapping():
            return dict(_leaves_of_mapping(returned))
    raise ConfigurationError(
        f"the policy returned a {type(returned).__name__}: it must be a tensor (the action), a dict of tensors with an "
        "'action', or a torch Distribution"
    )


def _leaves_of_mapping(found: Mapping[Any, Any], within: Key = ()) -> Iterator[tuple[Key, Tensor]]:
    for name, value in found.items():
        key = (*within, *((name,) if isinstance(name, str) else tuple(name)))
        if isinstance(value, Tensor):
            yield key, value
        elif isinstance(value, Mapping):
            yield from _leaves_of_mapping(value, key)
        else:
            raise ConfigurationError(
                f"the policy's {dotted(key)!r} is a {type(value).__name__}: it must be a tensor"
            )


def _is_tensordict(value: object) -> TypeGuard[TensorDictBase]:
    """Without loading tensordict: a value of its class cannot come from a module that is not loaded."""
    module = sys.modules.get("tensordict")
    return module is not None and isinstance(value, module.TensorDictBase)


def _leaves_of_tensordict(data: TensorDictBase) -> Iterator[tuple[Key, Tensor]]:
    for key, value in data.items(include_nested=True, leaves_only=True):
        yield (key,) if isinstance(key, str) else tuple(key), value


def dotted(key: Key) -> str:
    """A key as people write it."""
    return ".".join(key)
