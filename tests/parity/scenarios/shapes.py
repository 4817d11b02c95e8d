"""Rows of "Shapes, keys, copies"."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parity_api import SerialEnv, TensorDict
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column, following, names
from parity_toys import Bare, Count, Doubles, Recurrent, Team


@scenario("E-24")
def reset(make: Make) -> Any:
    return make(4, Count).reset()


@scenario("E-25")
def step(make: Make) -> Any:
    env = make(4, Count)
    td = acting(env.reset(), 1)
    stepped = env.step(td)
    return {"same": stepped is td, "step": stepped}


@scenario("E-26")
def results_are_the_callers_own(make: Make) -> Any:
    env = make(2, Count)
    first = env.reset()
    second = env.step(acting(first.clone(), 1))
    third = env.step(acting(following(second), 1))
    return {
        "values": [column(first), *(column(td, ("next", "observation")) for td in (second, third))],
        "shared": [td.is_shared() for td in (first, second, third)],
        "locked": [td.is_locked for td in (first, second, third)],
    }


@scenario("E-27")
def inner_batch_size(make: Make) -> Any:
    env = make(3, functools.partial(Count, batch_size=(2,)))
    got = env.rollout(3, lambda td: acting(td, 0.5))
    return {"batch_size": list(env.batch_size), "rollout": got}


@scenario("E-27", "E-24")
def reset_with_an_inner_batch_size(make: Make) -> Any:
    return make(2, functools.partial(Count, batch_size=(2, 3))).reset()


@scenario("E-28", right_in=("serial", "parallel"))
def nested_batches(make: Make) -> Any:
    env = make(2, functools.partial(SerialEnv, 3, Count))
    return {"batch_size": list(env.batch_size), "rollout": env.rollout(2, lambda td: acting(td, 1))}


@scenario("E-29")
def another_batch_size(make: Make) -> Any:
    env = make(4, Count)
    env.reset()
    wrong = TensorDict({"action": torch.ones(3, 1)}, batch_size=(3,))
    return {"error": error_of(lambda: env.step(wrong)), "after": env.reset()}


@scenario("E-30", "E-31")
def other_entries_of_the_root(make: Make) -> Any:
    env = make(2, Count)
    td = acting(env.reset(), 1).set("zzz", torch.arange(2.0))
    return env.step(td)


@scenario("E-31")
def a_root_observation_of_another_shape(make: Make) -> Any:
    env = make(2, Count)
    td = acting(env.reset(), 1).set("observation", torch.zeros(2, 5))
    stepped = env.step(td)
    return {"root": list(stepped["observation"].shape), "next": column(stepped, ("next", "observation"))}


@scenario("E-32", right_in=("parallel",))
def an_action_of_another_dtype(make: Make) -> Any:
    env = make(2, Count)
    td = env.reset().set("action", torch.ones(2, 1, dtype=torch.float64))
    stepped = env.step(td)
    return {"next": stepped["next", "observation"].dtype, "action": td["action"].dtype}


@scenario("E-33", right_in=("parallel",))
def an_action_of_another_shape(make: Make) -> Any:
    env = make(2, Count)
    td = env.reset().set("action", torch.ones(2, 3))
    return {"error": error_of(lambda: env.step(td)), "after": env.reset()}


@scenario("E-35")
def a_state_is_an_input(make: Make) -> Any:
    env = make(2, Recurrent)
    td = env.reset()
    keys = names(td)
    td.set("hid", torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    stepped, root = env.step_and_maybe_reset(acting(td, 1))
    return {
        "reset": keys,
        "observation": column(stepped, ("next", "observation")),
        "next": names(stepped["next"]),
        "hid": root["hid"].tolist(),
    }


@scenario("E-38", right_in=("serial", "parallel"))
def an_observation_of_another_dtype(make: Make) -> Any:
    env = make(2, Doubles)
    return env.step(acting(env.reset(), 1))["next"]


@scenario("E-40", right_in=("parallel",))
def done_alone_and_a_scalar_reward(make: Make) -> Any:
    env = make(2, Bare)
    return env.step(acting(env.reset(), 1, 3))["next"]


@scenario("E-41")
def nested_keys(make: Make) -> Any:
    env = make(2, Team)
    td = env.reset()
    td["agents", "action"] = torch.arange(6.0).reshape(2, 3, 1) / 2
    return {"reset_batch": list(td["agents"].batch_size), "step": env.step(td)}


@scenario("E-42", right_in=("serial",), ours=("serial",))
def gradients_through_serial(make: Make) -> Any:
    env = make(2, Count)
    action = torch.ones(2, 1, requires_grad=True)
    first = env.step(env.reset().set("action", action))
    second = env.step(following_with(first, action))
    again = env.reset()
    return {
        "reward": first["next", "reward"].requires_grad,
        "observation": [td["next", "observation"].requires_grad for td in (first, second)],
        "reset": again["observation"].requires_grad,
    }


def following_with(stepped: Any, action: torch.Tensor) -> Any:
    return stepped["next"].exclude("reward").set("action", action)


@scenario("E-43", right_in=("parallel",), ours=("parallel", "direct", "one child"))
def no_gradients_through_processes(make: Make) -> Any:
    env = make(2, Count)
    td = env.reset().set("action", torch.ones(2, 1, requires_grad=True))
    stepped = env.step(td)
    return [stepped["next", key].requires_grad for key in ("reward", "observation")]
