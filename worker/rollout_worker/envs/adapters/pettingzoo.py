"""PettingZooEnv: several agents of a PettingZoo parallel environment, one group of the tensordict per agent type."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.adapters.values import ActionCoder, leaves_of, one_number, stacked_leaves
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import FLAGS, EnvDescription, describe_spaces
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import Binary, Composite, EnvSpecs, Unbounded, leaf_spec_of

MASK, STATE = "mask", "state"


@dataclass(frozen=True)
class _Group:
    """Agents of one type: they share their spaces."""

    name: str
    agents: tuple[str, ...]
    description: EnvDescription
    actions: ActionCoder


class PettingZooEnv(EnvBase):
    """`PettingZooEnv(env)` takes a parallel environment that is made; `PettingZooEnv("butterfly.pistonball_v6",
    **kwargs)` imports `pettingzoo.butterfly.pistonball_v6` and calls its `parallel_env(**kwargs)`.

    Agents are grouped by type: `walker_0` and `walker_1` are the group `walker`; `group_map` (group to agents) says
    otherwise. A group holds, each with a dimension of its n agents in front: the observation's leaves, `action`,
    `reward` `[n, 1]`, the three flags `[n, 1]` and `mask` `[n]`, which is False for an agent that has left: its
    observation and reward are then zero, its flags stay, its action is ignored. The root's flags say how the
    episode ended: done when no agent is left to act, terminated when all have terminated. `use_state` adds the
    global `state`.

    Raises ValueError for groups whose agents differ in their spaces, TypeError for spaces without a spec.
    """

    def __init__(
        self,
        env: Any,
        *,
        group_map: Mapping[str, Sequence[str]] | None = None,
        use_state: bool = False,
        categorical_action_encoding: bool = True,
        device: Device = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device=device)
        self.env = _made(env, kwargs)
        self._use_state = use_state
        self._groups = _groups(self.env, group_map, is_one_hot=not categorical_action_encoding)
        self._next_seed: int | None = None
        self._flags: dict[str, tuple[bool, bool]] = {}
        observation: dict[str, Any] = {}
        action, reward, done = dict(observation), dict(observation), dict(observation)
        for group in self._groups:
            size = (len(group.agents),)
            specs = EnvSpecs.of(group.description)
            observed = specs.observation.expand(*size)
            observed[MASK] = Binary(None, size, dtype=torch.bool)
            observation[group.name] = observed
            action[group.name] = group.actions.specs().expand(*size)
            reward[group.name] = Composite(reward=Unbounded((*size, 1)), shape=size)
            flags = {flag: Binary(None, (*size, 1), dtype=torch.bool) for flag in FLAGS}
            done[group.name] = Composite(flags, shape=size)
        if use_state:
            observation[STATE] = leaf_spec_of(_state_description(self.env).observation[0][1])
        self.observation_spec = Composite(observation)
        self.full_action_spec = Composite(action)
        self.full_reward_spec = Composite(reward)
        self.full_done_spec = Composite(done)

    @property
    def group_map(self) -> dict[str, list[str]]:
        """The agents of each group, in the order of their rows."""
        return {group.name: list(group.agents) for group in self._groups}

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        seed, self._next_seed = self._next_seed, None
        observations, _ = self.env.reset(**{"seed": seed, **kwargs})
        self._flags = {agent: (False, False) for agent in self.env.possible_agents}
        return self._tensordict(observations, None)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        alive = set(self.env.agents)
        actions = {}
        for group in self._groups:
            taken = group.actions.batch(td.get(group.name))
            actions.update(
                {agent: act for agent, act in zip(group.agents, taken, strict=True) if agent in alive}
            )
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        for agent in alive:
            self._flags[agent] = (bool(terminated.get(agent, False)), bool(truncated.get(agent, False)))
        following = self._tensordict(observations, rewards)
        flags = list(self._flags.values())
        is_over = not self.env.agents or all(any(each) for each in flags)
        all_terminated = is_over and all(each[0] for each in flags)
        following.set("terminated", self._flag([all_terminated])[0])
        return following.set("truncated", self._flag([is_over and not all_terminated])[0])

    def _set_seed(self, seed: int | None) -> None:
        """PettingZoo seeds an environment by resetting it, so the seed waits for the next reset."""
        self._next_seed = seed

    def _tensordict(
        self, observations: Mapping[str, Any], rewards: Mapping[str, Any] | None
    ) -> TensorDictBase:
        made: TensorDictBase = TensorDict({}, batch_size=(), device=self.device)
        for group in self._groups:
            made.set(group.name, self._group(group, observations, rewards))
        if self._use_state:
            made.set(STATE, torch.from_numpy(np.array(self.env.state())))
        return made

    def _group(
        self, group: _Group, observations: Mapping[str, Any], rewards: Mapping[str, Any] | None
    ) -> TensorDictBase:
        td: TensorDictBase = TensorDict({}, batch_size=(len(group.agents),), device=self.device)
        given = {
            agent: dict(
                leaves_of(observations[agent], group.description.observation, group.description.paths)
            )
            for agent in group.agents
            if agent in observations
        }
        for key, leaf in group.description.observation:
            zero = leaf_spec_of(leaf).zero()
            rows = [given[agent][key] if agent in given else zero for agent in group.agents]
            td.set(key, stacked_leaves(rows, key, leaf))
        td.set(MASK, torch.tensor([agent in observations for agent in group.agents]))
        flags = [self._flags[agent] for agent in group.agents]
        td.set("terminated", self._flag([each[0] for each in flags]))
        td.set("truncated", self._flag([each[1] for each in flags]))
        if rewards is not None:
            td.set("reward", torch.tensor([[one_number(rewards.get(agent, 0.0))] for agent in group.agents]))
        return td

    def _flag(self, values: list[bool]) -> torch.Tensor:
        return torch.tensor(values, device=self.device).unsqueeze(-1)

    def render(self) -> Any:
        """What the environment's own `render` gives."""
        return self.env.render()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environment."""
        self.env.close()

    def __repr__(self) -> str:
        groups = ", ".join(f"{group.name}={len(group.agents)}" for group in self._groups)
        return f"PettingZooEnv({_name_of(self.env)}, {groups})"


def _made(env: Any, kwargs: dict[str, Any]) -> Any:
    if isinstance(env, str):
        return importlib.import_module(f"pettingzoo.{env}").parallel_env(**kwargs)
    if kwargs:
        raise TypeError(
            f"PettingZooEnv: {', '.join(kwargs)} cannot be given to an environment that is made already"
        )
    if not hasattr(env, "possible_agents") or not callable(getattr(env, "action_space", None)):
        raise TypeError(
            f"PettingZooEnv takes a parallel environment of PettingZoo or its name, not {type(env).__name__}"
        )
    return env


def _name_of(env: Any) -> str:
    return str((getattr(env, "metadata", None) or {}).get("name", type(env).__name__))


def _state_description(env: Any) -> EnvDescription:
    return describe_spaces(env.state_space, env.action_space(env.possible_agents[0]), name=_name_of(env))


def _groups(env: Any, wanted: Mapping[str, Sequence[str]] | None, *, is_one_hot: bool) -> list[_Group]:
    names: dict[str, list[str]] = {}
    if wanted is None:
        for agent in env.possible_agents:
            names.setdefault(re.sub(r"_\d+$", "", agent), []).append(agent)
    else:
        names = {name: list(agents) for name, agents in wanted.items()}
        _check_complete(names, list(env.possible_agents))
    return [_group_of(env, name, agents, is_one_hot) for name, agents in names.items()]


def _check_complete(names: Mapping[str, Sequence[str]], agents: list[str]) -> None:
    grouped = [agent for members in names.values() for agent in members]
    if sorted(grouped) != sorted(agents):
        raise ValueError(
            f"group_map holds {', '.join(sorted(grouped))}; the agents are {', '.join(sorted(agents))}"
        )


def _group_of(env: Any, name: str, agents: list[str], is_one_hot: bool) -> _Group:
    descriptions = [
        describe_spaces(env.observation_space(agent), env.action_space(agent), name=name) for agent in agents
    ]
    for agent, description in zip(agents, descriptions, strict=True):
        if description != descriptions[0]:
            raise ValueError(
                f"the agents {agents[0]} and {agent} of the group {name!r} have different spaces: give group_map with a "
                "group for each kind"
            )
    if any(key == (MASK,) for key, _ in descriptions[0].observation):
        raise ValueError(
            f"the observation of the group {name!r} has the key {MASK!r}, which says who is there; rename it"
        )
    return _Group(name, tuple(agents), descriptions[0], ActionCoder(descriptions[0], is_one_hot=is_one_hot))
