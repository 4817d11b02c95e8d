"""EnvBase itself: specs, rollouts, own resets; transforms; and the checker, which must find each kind of fault."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import toys
import toys_gym
import toys_td
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from toys_td import CountEnv

from rollout_worker.envs import (
    ActionMask,
    Binary,
    Bounded,
    Categorical,
    Compose,
    Composite,
    EnvBase,
    EnvSpecFaults,
    GymEnv,
    InitTracker,
    NonTensor,
    OneHot,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
    make_env,
)

T, F = True, False


def flat(td: Any, key: Any = "observation") -> Any:
    return td.get(key).squeeze(-1).tolist()


def one(td: TensorDictBase) -> TensorDictBase:
    return td.set("action", torch.ones(*td.batch_size, 1))


# -- specs of an environment -------------------------------------------------------------------------------------------


def test_specs_are_locked_once_an_environment_is_made():
    env = CountEnv()
    assert env.is_spec_locked
    with pytest.raises(RuntimeError, match="locked"):
        env.observation_spec["more"] = Unbounded()
    env.observation_spec = Composite(observation=Unbounded((1,)), more=Unbounded())
    assert env.is_spec_locked
    assert env.observation_keys == ["observation", "more"]
    free = CountEnv(spec_locked=False)
    free.observation_spec["more"] = Unbounded()
    assert "more" in free.observation_spec


def test_a_spec_that_was_given_is_the_environments_own():
    spec = Composite(observation=Unbounded((1,)))
    env = CountEnv()
    env.observation_spec = spec
    spec["more"] = Unbounded()
    assert env.observation_keys == ["observation"]


def test_groups_of_specs():
    env = toys_td.Two()
    assert env.input_spec["full_action_spec", "agents", "action"].shape == (2, 1)
    assert env.output_spec["full_done_spec", "agents", "done"].dtype == torch.bool
    assert env.reward_key == ("agents", "reward")
    fake = env.fake_tensordict()
    assert fake["next", "agents", "reward"].shape == (2, 1)
    assert set(fake.keys(True, True)) == set(env.rollout(1)[0].keys(True, True))


def test_moving_an_environment_moves_its_specs():
    env = CountEnv()
    assert env.to("cpu") is env
    assert env.device == torch.device("cpu")
    assert env.observation_spec.device == env.action_spec.device == torch.device("cpu")
    assert env.is_spec_locked


@pytest.mark.row("E-29")
def test_another_batch_size_is_refused():
    with pytest.raises(RuntimeError, match=r"batch size \[3\]; CountEnv expects \[2\]"):
        CountEnv(batch_size=(2,)).step(TensorDict({"action": torch.ones(3, 1)}, batch_size=(3,)))


# -- rollouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param({"max_steps": 0}, ValueError, "must be at least 1", id="no steps"),
        pytest.param({"auto_reset": False}, ValueError, "needs the tensordict", id="no root"),
        pytest.param(
            {"break_when_any_done": True, "break_when_all_done": True},
            TypeError,
            "exclude each other",
            id="both",
        ),
        pytest.param({"policy": lambda td: td}, KeyError, "policy gave no 'action'", id="no action"),
        pytest.param({"policy": lambda td: None}, TypeError, "policy gave NoneType", id="nothing"),
    ],
)
def test_options_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        CountEnv().rollout(**{"max_steps": 3, **options})


def test_a_policy_may_give_the_action_alone():
    got = CountEnv().rollout(2, lambda td: td["observation"] + 1)
    assert flat(got, "action") == [1.0, 2.0]


def test_a_rollout_into_memory_that_is_there():
    env = CountEnv(9)
    out = env.rollout(3, one).clone().zero_()
    assert env.rollout(3, one, out=out) is out
    assert flat(out, ("next", "observation")) == [1, 2, 3]


def test_a_policy_on_its_own_device():
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, td: TensorDictBase) -> TensorDictBase:
            assert td.device == torch.device("cpu")
            return td.set("action", self.weight.detach().clone())

    got = CountEnv(9).rollout(2, Module(), auto_cast_to_device=True, storing_device="cpu")
    assert got.device == torch.device("cpu")
    assert flat(got, ("next", "observation")) == [1, 2]


def test_a_result_that_must_be_dense():
    env = make_env(functools.partial(CountEnv, 9), num_envs=2, num_processes=0)
    assert not isinstance(env.rollout(2, one, return_contiguous=True), list)
    env.close()


@pytest.mark.row("E-79")
@pytest.mark.row("E-80")
def test_until_all_elements_of_a_batch_are_done():
    actions = torch.tensor([[1.0], [0.75]])
    got = CountEnv(3, batch_size=(2,)).rollout(
        9, lambda td: td.set("action", actions), break_when_all_done=True
    )
    assert flat(got, ("next", "observation")) == [[1, 2, 3, 3], [0.75, 1.5, 2.25, 3]]


# -- environments that reset themselves --------------------------------------------------------------------------------


class Rolling(CountEnv):
    """Begins anew in the step that ends, and gives the first observation there."""

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        following = super()._step(td)
        self.count = torch.where(following["done"], torch.full_like(self.count, self.start), self.count)
        return following.set("observation", self.count.clone())


@pytest.mark.probe("P-32")
@pytest.mark.parametrize("is_replacing", [True, False])
def test_own_resets_are_kept_for_the_reset(is_replacing):
    env = Rolling(3, batch_size=(2,), auto_reset=True, auto_reset_replace=is_replacing)
    actions = torch.tensor([[1.0], [1.5]])
    got = env.rollout(4, lambda td: td.set("action", actions), break_when_any_done=False)
    assert flat(got) == [[0, 1, 2, 0], [0, 1.5, 0, 1.5]]
    last = got["next", "observation"][0, 2].item()
    assert np.isnan(last) if is_replacing else last == 0
    assert flat(got, ("next", "done")) == [[F, F, T, F], [F, T, F, T]]
    assert env.n_reset == 1


# -- transforms --------------------------------------------------------------------------------------------------------

BATCHES = [
    pytest.param(lambda make: TransformedEnv(make(), list_of_three()), id="single"),
    pytest.param(
        lambda make: SerialEnv(1, lambda: TransformedEnv(make(), list_of_three())), id="within serial"
    ),
    pytest.param(lambda make: TransformedEnv(SerialEnv(1, make), list_of_three()), id="over serial"),
    pytest.param(
        lambda make: TransformedEnv(ParallelEnv(1, make, mp_start_method="fork"), list_of_three()),
        id="over a child",
    ),
]


def list_of_three() -> list[Any]:
    return [StepCounter(4, step_count_key="my_steps"), RewardSum(), InitTracker()]


@pytest.mark.probe("P-04")
@pytest.mark.parametrize("batch", BATCHES)
def test_what_counts_over_episodes_means_the_same_everywhere(batch):
    env = batch(functools.partial(CountEnv, 3))
    try:
        got = env.rollout(7, one, break_when_any_done=False).reshape(7)
    finally:
        env.close(raise_if_closed=False)
    assert flat(got, ("next", "episode_reward")) == [1, 2, 3, 1, 2, 3, 1]
    assert flat(got, ("next", "my_steps")) == [1, 2, 3, 1, 2, 3, 1]
    assert flat(got, "my_steps") == [0, 1, 2, 0, 1, 2, 0]
    assert flat(got, "is_init") == [T, F, F, T, F, F, T]
    assert not got["next", "is_init"].any()


@pytest.mark.probe("P-05")
@pytest.mark.parametrize("is_within", [True, False])
def test_a_limit_reaches_the_flags_of_agents(is_within):
    counter = StepCounter(4, step_count_key="my_steps")
    if is_within:
        env: EnvBase = SerialEnv(3, lambda: TransformedEnv(toys_td.Two(None), counter))
    else:
        env = TransformedEnv(SerialEnv(3, functools.partial(toys_td.Two, None)), counter)
    got = env.rollout(8, break_when_any_done=False)
    env.close()
    for level, shape in (((), (3, 8, 1)), (("agents",), (3, 8, 2, 1))):
        for flag in ("truncated", "done"):
            value = got.get(("next", *level, flag))
            assert value.shape == shape
            assert value.reshape(3, 8, -1).all(-1).tolist() == [[F, F, F, T] * 2] * 3
            assert value.reshape(3, 8, -1).any(-1).tolist() == [[F, F, F, T] * 2] * 3
        assert not got.get(("next", *level, "terminated")).any()
        steps = got.get(("next", *level, "my_steps"))
        assert steps.shape == shape
        assert steps.reshape(3, 8, -1)[..., 0].tolist() == [[1, 2, 3, 4] * 2] * 3


def test_a_counter_without_truncation():
    env = TransformedEnv(CountEnv(9), StepCounter())
    got = env.rollout(3, one)
    assert flat(got, ("next", "step_count")) == [1, 2, 3]
    counted = TransformedEnv(CountEnv(9), StepCounter(2, truncated_key=None)).rollout(3, one)
    assert not counted["next", "done"].any()
    with pytest.raises(ValueError, match="give truncated_key=None"):
        StepCounter(2, update_done=False)
    with pytest.raises(ValueError, match="must be at least 1"):
        StepCounter(0)


def test_rows_keep_their_counts_through_partial_resets_and_steps():
    env = TransformedEnv(CountEnv(99, batch_size=(3,)), Compose(StepCounter(), RewardSum()))
    root = env.reset()
    for _ in range(2):
        root = env.step_mdp(env.step(one(root)))
    bare = TensorDict({"_reset": torch.tensor([[T], [F], [F]])}, batch_size=(3,))
    root = env.reset(bare)
    assert flat(root, "step_count") == [0, 2, 2]
    assert flat(root, "episode_reward") == [0, 2, 2]
    stepped = env.step(one(root).set("_step", torch.tensor([T, F, T])))
    assert flat(stepped, ("next", "step_count")) == [1, 2, 3]
    assert flat(stepped, ("next", "episode_reward")) == [1, 2, 3]
    alone = env.step(one(TensorDict({}, batch_size=(3,))))
    assert flat(alone, ("next", "step_count")) == [2, 3, 4]


def test_sums_of_chosen_rewards():
    env = TransformedEnv(toys_td.Two(9), RewardSum([("agents", "reward")], [("agents", "total")]))
    got = env.rollout(3)
    torch.testing.assert_close(got["next", "agents", "total"][-1], got["next", "agents", "reward"].sum(0))
    with pytest.raises(KeyError, match="has no reward"):
        TransformedEnv(CountEnv(), RewardSum(["other"]))
    with pytest.raises(ValueError, match="go in pairs"):
        RewardSum(["a"], ["b", "c"])


class Masked(EnvBase):
    """Allows the actions `1` and, on even steps, `n - 1`; raises for others."""

    def __init__(self, batch_size: tuple[int, ...] = (), *, is_one_hot: bool = False) -> None:
        super().__init__(batch_size=batch_size)
        mask = Binary(None, (*batch_size, 4), dtype=torch.bool)
        self.observation_spec = Composite(action_mask=mask, shape=batch_size)
        spec = OneHot(4, (*batch_size, 4)) if is_one_hot else Categorical(4, batch_size)
        self.action_spec = spec
        self.n = 0

    def _mask(self) -> torch.Tensor:
        mask = torch.tensor([F, T, F, self.n % 2 == 0])
        return mask.expand(*self.batch_size, 4).clone()

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return TensorDict({"action_mask": self._mask()}, batch_size=self.batch_size)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        action = td.get("action")
        number = action.long().argmax(-1) if action.dtype == torch.bool else action
        if not bool(self._mask().gather(-1, number.unsqueeze(-1)).all()):
            raise ValueError(f"{number.tolist()} is not allowed")
        self.n += 1
        shape = (*self.batch_size, 1)
        return TensorDict(
            {"action_mask": self._mask(), "reward": torch.zeros(shape)}, batch_size=self.batch_size
        )


@pytest.mark.parametrize("is_one_hot", [F, T])
@pytest.mark.parametrize("batch_size", [(), (3,)])
def test_random_actions_keep_to_the_mask(batch_size, is_one_hot):
    env = TransformedEnv(Masked(batch_size, is_one_hot=is_one_hot), ActionMask())
    env.rollout(40)
    env.reset()
    assert env.action_spec.is_in(env.action_spec.rand())
    wrong = torch.zeros(batch_size, dtype=torch.int64)
    assert not env.action_spec.is_in(torch.nn.functional.one_hot(wrong, 4).bool() if is_one_hot else wrong)
    with pytest.raises(ValueError, match="not allowed"):
        Masked(batch_size).rollout(60)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        pytest.param(ActionMask(mask_key="other"), KeyError, "has no observation", id="no mask"),
        pytest.param(ActionMask(action_key="other"), KeyError, "has no action", id="no action"),
        pytest.param("text", TypeError, "not str", id="no transform"),
    ],
)
def test_transforms_that_do_not_fit(transform, error, message):
    with pytest.raises(error, match=message):
        TransformedEnv(Masked(), transform)


def test_a_mask_needs_categories():
    env = GymEnv(toys_gym.Informed(), infos={"mask": Binary(2, dtype=torch.bool)})
    env.full_action_spec = Composite(action=Bounded(0.0, 1.0, ()))
    with pytest.raises(TypeError, match="only Categorical and OneHot"):
        TransformedEnv(env, ActionMask(mask_key="mask"))


def test_transforms_pile_up_and_pass_on():
    env = CountEnv(9).append_transform(StepCounter(2)).append_transform(RewardSum())
    assert isinstance(env, TransformedEnv)
    assert isinstance(env.transform, Compose)
    assert (len(env.transform), env.transform[0].max_steps) == (2, 2)
    assert env.hello(1, y=2) == ("x", 1, 2)
    assert type(env.base_env) is CountEnv
    assert env.set_seed(0) == CountEnv().set_seed(0)
    with pytest.raises(AttributeError, match="no_such"):
        _ = env.no_such
    assert TransformedEnv(TransformedEnv(CountEnv(), StepCounter()), RewardSum()).base_env.tag == "x"
    assert env.to("cpu").reset().device == torch.device("cpu")
    assert env.rollout(1).device == torch.device("cpu")


# -- the checker -------------------------------------------------------------------------------------------------------


class Faulty(CountEnv):
    """Is wrong in one way."""

    def __init__(self, how: str, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(99, batch_size=batch_size)
        self.how = how
        self.buffer = torch.zeros(*batch_size, 1)
        if how == "batch":
            self.__dict__["_batch_size"] = torch.Size((2,))

    def _spoilt(self, td: TensorDictBase, *, is_step: bool) -> TensorDictBase:
        value = td["observation"]
        match self.how:
            case "dtype":
                td["observation"] = value.double()
            case "shape":
                td["observation"] = value.expand(3)
            case "missing":
                del td["observation"]
            case "extra":
                td["more"] = value
            case "nan":
                td["observation"] = value * torch.nan
            case "alias":
                td["observation"] = self.buffer.copy_(value)
            case "begins done" if not is_step:
                td["done"] = torch.tensor([T])
            case "flags" if is_step:
                td["done"], td["terminated"], td["truncated"] = (torch.tensor([x]) for x in (T, F, F))
            case "random":
                td["observation"] = torch.rand(1)
        return td

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if self.how == "raises":
            raise ZeroDivisionError("oops")
        return self._spoilt(super()._reset(None if self.how == "mask" else td, **kwargs), is_step=F)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        if self.how == "root":
            td.get("observation").add_(1)
        return self._spoilt(super()._step(td), is_step=T)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param("raises", "reset raised ZeroDivisionError: oops", id="raises"),
        pytest.param(
            "dtype", "reset: 'observation' has dtype torch.float64; its spec says torch.float32", id="dtype"
        ),
        pytest.param("shape", r"reset: 'observation' has shape \[3\]; its spec says \[1\]", id="shape"),
        pytest.param("missing", "reset: 'observation' is missing", id="missing"),
        pytest.param("extra", "reset: 'more' is in no spec", id="extra"),
        pytest.param("nan", "reset: 'observation' holds NaN", id="nan"),
        pytest.param("alias", "'observation' of the reset has changed since: hand out a copy", id="alias"),
        pytest.param("begins done", "reset: 'done' is True already", id="begins done"),
        pytest.param("root", "step 1 changed 'observation' of the root", id="root"),
        pytest.param("random", r"after set_seed\(0\) twice, 'observation' of the reset differs", id="random"),
        pytest.param(
            "batch",
            r"observation spec of 'observation' has shape \[1\]; it must start with .* \[2\]",
            id="batch",
        ),
    ],
)
def test_the_checker_names_the_fault(how, message):
    with pytest.raises(EnvSpecFaults, match=message) as caught:
        check_env_specs(Faulty(how))
    assert len(caught.value.faults) >= 1


def test_the_checker_finds_rows_that_were_not_to_be_reset():
    with pytest.raises(EnvSpecFaults, match="a reset of one row changed 'observation' of others"):
        check_env_specs(Faulty("mask", batch_size=(2,)))


class Empty(EnvBase):
    """Declares nothing."""

    def _reset(self, td: Any, **kwargs: Any) -> Any:
        return TensorDict({}, batch_size=())

    def _step(self, td: Any) -> Any:
        return TensorDict({"reward": [0.0]}, batch_size=())


def test_the_checker_lists_everything():
    with pytest.raises(EnvSpecFaults) as caught:
        check_env_specs(Empty())
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "observation_spec is empty",
        "action_spec is empty",
    ]


class Outside(toys.Count):
    """Observes what its space does not allow."""

    def _space(self) -> spaces.Space:
        return spaces.Box(0, 1, (1,), np.float32)

    def _observe(self) -> Any:
        return np.array([self.n], dtype=np.float32)


GOOD = [
    pytest.param(lambda: GymEnv("CartPole-v1"), id="gymnasium"),
    pytest.param(lambda: gymnasium.make("CartPole-v1"), id="as gymnasium made it"),
    pytest.param(CountEnv, id="ours"),
    pytest.param(lambda: CountEnv(batch_size=(2, 3)), id="a batch"),
    pytest.param(lambda: toys_td.Two(3), id="agents"),
    pytest.param(lambda: GymEnv(toys.Text()), id="texts"),
    pytest.param(lambda: make_env("CartPole-v1", num_envs=2, num_processes=0), id="serial"),
    pytest.param(lambda: TransformedEnv(CountEnv(), list_of_three()), id="transforms"),
]


@pytest.mark.parametrize("make", GOOD)
def test_the_checker_finds_nothing_where_nothing_is_wrong(make):
    check_env_specs(make())


def test_the_checker_finds_values_outside_and_can_leave_seeds_out():
    with pytest.raises(EnvSpecFaults, match="step 2: 'observation' holds values that are not in Bounded"):
        check_env_specs(GymEnv(Outside(9)))
    check_env_specs(Faulty("random"), seed=None)
    with pytest.raises(TypeError, match="no environment; pass one that is made"):
        check_env_specs(toys.Count)


def test_scalars_are_reset_too():
    env = GymEnv(toys_gym.Spaces(2))
    assert env.rollout(7, break_when_any_done=False)["from_two"].shape == (7,)
    assert isinstance(env.observation_spec["text"], NonTensor)
