"""The loop behind `EnvBase.rollout`: acting, stepping, stopping, and laying the steps along time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.transitions import STEP, along_time, merged_where

if TYPE_CHECKING:
    from rollout_worker.envs.base import EnvBase, Policy


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """The options of a rollout, as `EnvBase.rollout` describes them. Contradictions are refused here."""

    max_steps: int
    auto_reset: bool
    auto_cast_to_device: bool
    break_when_any_done: bool | None
    break_when_all_done: bool | None
    return_contiguous: bool | None
    set_truncated: bool
    trust_policy: bool
    storing_device: torch.device | None

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be at least 1")
        if self.break_when_any_done and self.break_when_all_done:
            raise TypeError(
                "break_when_any_done and break_when_all_done exclude each other; give one of them"
            )

    @property
    def stops_at_any(self) -> bool:
        """Whether the first end of any row ends the rollout."""
        return not self.break_when_all_done if self.break_when_any_done is None else self.break_when_any_done


def rolled_out(
    env: EnvBase,
    policy: Policy | None,
    callback: Callable[[EnvBase, TensorDictBase], Any] | None,
    tensordict: TensorDictBase | None,
    *,
    options: RolloutOptions,
    out: TensorDictBase | None,
) -> TensorDictBase:
    """Act, and give the steps along time."""
    if not options.auto_reset and tensordict is None:
        raise ValueError("auto_reset=False needs the tensordict to go on from")
    root = env.reset(tensordict) if options.auto_reset else tensordict
    assert root is not None
    act = _actor(env, policy, options)
    steps: list[TensorDictBase] = []
    finished: torch.Tensor | None = None
    while True:
        acting = act(root)
        if options.stops_at_any or options.break_when_all_done:
            stepped = env.step(acting)
            root = env.step_mdp(stepped)
        else:
            stepped, root = env.step_and_maybe_reset(acting)
        if finished is not None:
            stepped = merged_where(~finished, stepped, steps[-1])
        steps.append(_kept(stepped, options.storing_device))
        if len(steps) == options.max_steps:
            break
        if options.stops_at_any or options.break_when_all_done:
            ended = env._any_done(stepped.get("next"))
            if bool(ended.any() if options.stops_at_any else ended.all()):
                break
            if options.break_when_all_done:
                finished = ended
                root.set(STEP, ~ended)
        if callback is not None:
            callback(env, root)
    result = _along_time([step.exclude(STEP) for step in steps], options.return_contiguous)
    if options.set_truncated:
        truncate_last(env, result)
    return result if out is None else out.update_(result)


def _kept(stepped: TensorDictBase, device: torch.device | None) -> TensorDictBase:
    return stepped.clone(False) if device is None or device == stepped.device else stepped.to(device)


def _along_time(steps: list[TensorDictBase], return_contiguous: bool | None) -> TensorDictBase:
    if return_contiguous:
        stacked: Any = torch.stack(steps, steps[0].ndim).contiguous()
        stacked.refine_names(..., "time")
        return cast("TensorDictBase", stacked)
    return along_time(steps)


def _actor(
    env: EnvBase, policy: Policy | None, options: RolloutOptions
) -> Callable[[TensorDictBase], TensorDictBase]:
    """What puts an action into a root."""
    if policy is None:
        return env.rand_action
    parameter = next(iter(policy.parameters()), None) if isinstance(policy, torch.nn.Module) else None
    policy_device = parameter.device if options.auto_cast_to_device and parameter is not None else None

    def act(root: TensorDictBase) -> TensorDictBase:
        given = root if policy_device is None else root.to(policy_device)
        taken: Any = policy(given)
        if isinstance(taken, torch.Tensor):
            taken = given.set(env.action_key, taken)
        if policy_device is not None:
            taken = root.update(taken.to(env.device) if env.device is not None else taken.to("cpu"))
        if not options.trust_policy:
            _check_actions(env, taken)
        return taken

    return act


def _check_actions(env: EnvBase, taken: Any) -> None:
    if not isinstance(taken, TensorDictBase):
        raise TypeError(
            f"the policy gave {type(taken).__name__}; expected is its tensordict, or the action as a tensor"
        )
    for key in env.action_keys:
        if key not in taken.keys(True) and taken.get(key, None) is None:
            raise KeyError(
                f"the policy gave no {key!r}; it gave {', '.join(map(repr, taken.keys(True, True)))}"
            )


def truncate_last(env: EnvBase, result: TensorDictBase) -> None:
    """Mark the last frame of a rollout as truncated and done, at every level."""
    last = (*(slice(None),) * len(env.batch_size), -1)
    for key, _ in env.full_done_spec.leaves():
        if key[-1] in ("done", "truncated"):
            result.get(("next", *key))[last] = True
