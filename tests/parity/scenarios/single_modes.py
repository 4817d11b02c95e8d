"""Rows in which the oracle is right in some of its modes only."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from parity_api import NonTensorData
from parity_odd import Drawing, Locked, Misshapen, Talkative, shared
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column, names
from parity_toys import Count, Words

IN_CHILDREN = ("parallel", "direct", "one child")


@scenario("E-06")
def keywords_are_copied_for_each(make: Make) -> Any:
    given = {"start": 3}
    env = make(3, Count, create_env_kwargs=given)
    env.create_env_kwargs[0]["start"] = 9
    given["start"] = 7
    return column(env.reset())[1:]


@scenario("E-17", right_in=("serial",), ours=("serial",))
def one_object_given_each_time(make: Make) -> Any:
    env = make(3, shared)
    return env.step(acting(env.reset(), 1, 2, 0.5))


@scenario("E-18", right_in=("parallel",), ours=("parallel",))
def lambdas_are_wrapped_with_a_word(make: Make) -> Any:
    def told(*factories: Any, **more: Any) -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env = make(2, list(factories) if len(factories) > 1 else factories[0], **more)
        said = [each.category.__name__ for each in caught if each.category is UserWarning]
        return [said, isinstance(env.meta_data, list)]

    one, other = (lambda: Count()), (lambda: Count(start=1))
    return [
        told(one),
        told(one, one),
        told(one, other)[1],
        told(one, auto_wrap_envs=False),
        told(functools.partial(Count)),
    ]


@scenario("E-36", right_in=("parallel",))
def a_leaf_that_no_spec_declares(make: Make) -> Any:
    env = make(2, Talkative)
    return names(env.step(acting(env.reset(), 1))["next"])


@scenario("E-39", right_in=("serial",))
def an_observation_of_another_shape(make: Make) -> Any:
    env = make(2, Misshapen)
    td = env.step_and_maybe_reset(acting(env.reset(), 1))[1]
    return error_of(lambda: env.step(acting(td, 1)))


@scenario("E-93", right_in=("serial", "direct"))
def actions_that_are_texts(make: Make) -> Any:
    env = make(2, functools.partial(Words, worded=True))
    td = env.reset()
    rows = [row.set("action", NonTensorData(word)) for row, word in zip(td.unbind(0), "12", strict=True)]
    stepped = env.step(torch.stack(rows, 0))
    return {"text": stepped["next"].get("text"), "reward": stepped["next", "reward"]}


@scenario("E-101")
def devices_that_differ(make: Make) -> Any:
    factories = [functools.partial(Count, device="cpu"), functools.partial(Count, device=None)]
    return error_of(lambda: make(2, factories).reset())


@scenario("E-111", right_in=("parallel",), ours=IN_CHILDREN)
def the_global_generator_is_seeded_in_each_process(make: Make) -> Any:
    env = make(3, Drawing, **({"num_processes": 3} if make.mode == "one child" else {}))
    runs = []
    for _ in range(2):
        env.set_seed(0)
        runs.append(list(env.draw()))
    return [len(set(runs[0])), runs[0] == runs[1]]


@scenario("E-116", right_in=("parallel", "direct"), ours=IN_CHILDREN)
def locks_in_a_state(make: Make) -> Any:
    return make(2, Locked).state_dict()


@scenario("E-123")
def names_that_are_never_asked_for(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    return [error_of(lambda: env.__nothing_such__), column(env.reset())]


@scenario("E-125", right_in=("serial",))
def an_unknown_attribute(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    return [error_of(lambda: list(env.nothing_such)), column(env.reset())]


@scenario("E-132", right_in=("parallel",), ours=IN_CHILDREN)
def a_seeded_batch_that_is_moved(make: Make) -> Any:
    env = make(2, Count)
    env.set_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.to("cpu")
    env.reset()
    return [list(env.seed_seen), bool(caught)]
