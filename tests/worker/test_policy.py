"""What a policy may be, how it is called, and what is said where it does not fit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, OneHotCategorical

from rollout_contract.errors import ConfigurationError, PolicyError
from rollout_contract.spec import Exploration
from rollout_worker.envs.specs import Binary, Composite, OneHot, Unbounded
from rollout_worker.envs.specs import Categorical as Choice
from rollout_worker.policy import BlockPolicy, exploration_type, open_policy

NUM_ENVS, NUM_STEPS = 3, 2
PLAIN = Composite(observation=Unbounded((4,)))
TWO = Composite(observation=Unbounded((4,)), mask=Binary(2, dtype=torch.bool))
NESTED = Composite(agents=Composite(observation=Unbounded((2, 4))))
SCALAR = Composite(action=Choice(2))
VECTOR = Composite(action=Unbounded((2,)))


def opened(
    policy: object,
    observation: Composite = PLAIN,
    action: Composite = VECTOR,
    exploration: Exploration = Exploration.RANDOM,
) -> tuple[BlockPolicy, Mapping[tuple[str, ...], Tensor]]:
    """The policy, and a block for it whose observations are their environments' numbers (flags: whether odd)."""
    found = open_policy(
        policy, observation_spec=observation, action_spec=action, num_envs=NUM_ENVS, exploration=exploration
    )
    views = {}
    for key, spec in observation.leaves():
        views[key] = spec.zero((NUM_ENVS, NUM_STEPS))
        for index in range(NUM_ENVS):
            views[key][index] = index % 2 if views[key].dtype == torch.bool else index
    for key, spec in action.leaves():
        views[key] = spec.zero((NUM_ENVS, NUM_STEPS))
    for key, (dtype, shape) in found.outputs.items():
        views[key] = torch.zeros(NUM_ENVS, NUM_STEPS, *shape, dtype=dtype)
    return found, views


def acted(policy: object, *specs: Composite, exploration: Exploration = Exploration.RANDOM) -> Any:
    """The block after its second step was acted on."""
    found, views = opened(policy, *specs, exploration=exploration)
    found.act(views, 1, 2)
    return views


def refused(policy: object, *specs: Composite, error_type: type[Exception] = ConfigurationError) -> str:
    """Why a policy is not taken."""
    with pytest.raises(error_type) as error:
        opened(policy, *specs)
    return str(error.value)


class Pair(nn.Module):
    """The first two numbers of what it sees."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation[:, :2]


class Other(nn.Module):
    """The same, with a parameter that is named after nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


def with_td(td: TensorDict) -> TensorDict:
    return td.set("action", td["observation"][:, :2])


def with_tensordict(tensordict: TensorDict) -> None:
    """Sets the action in place, and returns nothing."""
    tensordict["action"] = tensordict["observation"][:, :2]


def valued(observation: Tensor) -> dict[str, dict[str, Tensor]]:
    """An action and a value for each agent."""
    return {"agents": {"action": observation[..., :1], "value": observation[..., 1]}}


WAYS: dict[str, Callable[[], object]] = {
    "module": Pair,
    "module of one parameter, of any name": Other,
    "sequential": lambda: nn.Sequential(nn.Identity(), Pair()),
    "scripted": lambda: torch.jit.script(Other()),
    "traced": lambda: torch.jit.trace(Pair(), torch.zeros(1, 4)),
    "compiled": lambda: torch.compile(Pair(), backend="eager"),
    "function": lambda: lambda observation: observation[:, :2],
    "function by name only": lambda: lambda *, observation: observation[:, :2],
    "function by position only": lambda: lambda observation, /: observation[:, :2],
    "function with more": lambda: lambda observation, *rest, scale=1.0, **more: observation[:, :2] * scale,
    "partial": lambda: functools.partial(lambda width, observation: observation[:, :width], 2),
    "td": lambda: with_td,
    "tensordict, in place": lambda: with_tensordict,
    "tensordict module": lambda: TensorDictModule(Pair(), in_keys=["observation"], out_keys=["action"]),
    "dict": lambda: lambda observation: {"action": observation[:, :2]},
    "tuple as key": lambda: lambda observation: {("action",): observation[:, :2]},
    "tensordict returned": lambda: (
        lambda observation: TensorDict({"action": observation[:, :2]}, batch_size=[NUM_ENVS])
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_be_called(way: str) -> None:
    views = acted(WAYS[way]())

    assert views[("action",)][:, 1].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert not views[("action",)][:, 0].any(), "another step's are left alone"


def test_parts_go_to_the_parameters_of_their_names() -> None:
    def needed(mask: Tensor, observation: Tensor) -> Tensor:
        return observation[:, :2] + 10 * mask

    def optional(observation: Tensor, mask: Tensor | None = None, noise: float = 0.0) -> Tensor:
        assert mask is not None, "it has a part of this name"
        return observation[:, :2] + 10 * mask + noise

    for policy in (needed, optional):
        assert acted(policy, TWO)[("action",)][:, 1].tolist() == [[0, 0], [11, 11], [2, 2]]


@pytest.mark.parametrize("policy", [
    lambda observation: valued(observation), lambda agents_observation: valued(agents_observation),
    lambda whatever: valued(whatever),
])  # fmt: skip
def test_nested_parts_and_actions(policy: object) -> None:
    action = Composite(agents=Composite(action=Unbounded((2, 1))))

    views = acted(policy, NESTED, action)

    assert views[("agents", "action")][:, 1, :, 0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert views[("agents", "value")][:, 1].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_more_that_it_returns_is_recorded() -> None:
    def policy(observation: Tensor) -> dict[str, Tensor]:
        return {"action": observation[:, :2], "value": observation[:, 0], "state": observation.double()}

    found, _ = opened(policy)

    assert found.outputs == {("value",): (torch.float32, ()), ("state",): (torch.float64, (4,))}
    assert acted(policy)[("value",)][:, 1].tolist() == [0, 1, 2]


def test_what_the_actions_are_taken_from_draws_nothing_at_the_start() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    opened(lambda observation: Normal(observation[:, :2], 1.0))

    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(("distribution", "exploration", "expected"), [
    ("normal", "Mode", [0, 1, 2]), ("normal", "Mean", [0, 1, 2]), ("normal", "Median", [0, 1, 2]),
    ("normal", "Deterministic", [0, 1, 2]), ("independent", "Mode", [0, 1, 2]),
    ("independent", "Deterministic", [0, 1, 2]), ("categorical", "Mode", [1, 1, 1]),
    ("categorical", "Deterministic", [1, 1, 1]),
])  # fmt: skip
def test_exploration(distribution: str, exploration: str, expected: list[float]) -> None:
    ways: dict[str, tuple[Callable[..., Any], Composite]] = {
        "normal": (lambda observation: Normal(observation[:, :2], 1.0), VECTOR),
        "independent": (lambda observation: Independent(Normal(observation[:, :2], 1.0), 1), VECTOR),
        "categorical": (lambda observation: Categorical(probs=torch.tensor([[0.2, 0.8]] * NUM_ENVS)), SCALAR),
    }
    policy, action = ways[distribution]
    views = acted(policy, PLAIN, action, exploration=Exploration(exploration))

    assert views[("action",)][:, 1].reshape(NUM_ENVS, -1)[:, 0].tolist() == expected
    assert ("log_prob",) in views


def test_exploration_that_a_distribution_does_not_know() -> None:
    policy = lambda observation: Categorical(logits=observation[:, :2])  # noqa: E731

    with pytest.raises(
        ConfigurationError, match=r"policy\.exploration is Median, for which a Categorical .*Random"
    ):
        opened(policy, PLAIN, SCALAR, Exploration.MEDIAN)


def test_a_policy_that_samples_itself_asks_how() -> None:
    seen = []

    def policy(observation: Tensor) -> Tensor:
        seen.append(exploration_type())
        return observation[:, :2]

    acted(policy, exploration=Exploration.MEAN)

    assert set(seen) == {Exploration.MEAN}
    assert exploration_type() is Exploration.RANDOM, "outside"


def test_no_policy_draws_from_the_action_spec_step_by_step() -> None:
    found, at_once = opened(None, PLAIN, SCALAR)
    torch.manual_seed(1)
    found.act(at_once, 0, NUM_STEPS)
    _, by_step = opened(None, PLAIN, SCALAR)
    torch.manual_seed(1)
    for step in range(NUM_STEPS):
        found.act(by_step, step, step + 1)

    assert torch.equal(at_once[("action",)], by_step[("action",)])


class TestRefusals:
    @pytest.mark.parametrize(("policy", "words"), [
        (42, "callable, not a int"),
        (lambda: torch.zeros(NUM_ENVS, 2), "parameters are []"),
        (torch.relu, "parameters are []"),
        (lambda a, b: a, "['a', 'b']"),
        (lambda *parts: parts[0][:, :2], "['observation']"),
        (lambda observation: observation[:, :3], "'action' has shape [3, 3] for 3 environments; expected [3, 2]"),
        (lambda observation: observation[0, :2], "expected [3, 2]"),
        (lambda observation: torch.tensor(1.0), "expected [3, 2]"),
        (lambda observation: {"value": observation}, "['value'], but no 'action'"),
        (lambda observation: {"action": observation[:, :2], "value": torch.zeros(5)}, "'value' has shape [5]"),
        (lambda observation: {"action": observation[:, :2].numpy()}, "'action' is a ndarray: it must be a tensor"),
        (lambda observation: {"action": observation[:, :2], "state": {"h": None}}, "'state.h' is a NoneType"),
        (lambda observation: observation[:, :2].numpy(), "returned a ndarray"),
        (lambda observation: (observation[:, :2], observation), "returned a tuple"),
        (lambda observation: None, "returned a NoneType"),
    ])  # fmt: skip
    def test_what_does_not_fit(self, policy: object, words: str) -> None:
        assert words in refused(policy)

    def test_fractions_for_whole_numbers(self) -> None:
        said = refused(lambda observation: observation[:, 0], PLAIN, SCALAR)
        assert "'action' is torch.float32, the action spec is torch.int64" in said
        assert "argmax" in said

    def test_ones_and_zeros_as_floats_are_the_same(self) -> None:
        one_hot = Composite(action=OneHot(2))
        views = acted(
            lambda observation: OneHotCategorical(logits=observation[:, :2]), PLAIN, one_hot,
            exploration=Exploration.MODE,
        )  # fmt: skip
        assert views[("action",)][:, 1].sum(-1).tolist() == [1, 1, 1]

    def test_what_it_raises_comes_with_its_own_lines(self) -> None:
        def policy(observation: Tensor) -> Tensor:
            raise KeyError("hidden")

        said = refused(policy, error_type=PolicyError)
        assert "the policy raised KeyError: 'hidden'" in said
        assert 'raise KeyError("hidden")' in said
        assert "policy_calls.py" not in said

    def test_other_things_than_at_the_start(self) -> None:
        calls = []

        def policy(observation: Tensor) -> dict[str, Tensor]:
            calls.append(1)
            return {"action": observation[:, :2]} if len(calls) == 1 else {"value": observation[:, 0]}

        with pytest.raises(PolicyError, match=r"\['value'\], but \['action'\] at the start"):
            acted(policy)
