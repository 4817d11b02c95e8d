"""Rows of "Reset and partial reset"."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column, following, mask
from parity_toys import Count, Team


def stepped_once(env: Any, *actions: float) -> Any:
    """The root after one step."""
    return following(env.step(acting(env.reset(), *(actions or (1,)))))


@scenario("E-44")
def everything_is_reset_once(make: Make) -> Any:
    env = make(4, Count)
    env.reset()
    return list(env.n_reset)


@scenario("E-45")
def flags_do_not_choose(make: Make) -> Any:
    env = make(2, Count)
    td = env.reset()
    td["done"] = mask(True, False, width=True)
    return {"reset": env.reset(td), "n_reset": list(env.n_reset)}


@scenario("E-46", right_in=("serial", "parallel", "direct"))
def a_partial_reset(make: Make) -> Any:
    env = make(4, Count)
    td = stepped_once(env).set("_reset", mask(True, False, True, False, width=True))
    got = env.reset(td)
    return {"same": got is td, "reset": got, "n_reset": list(env.n_reset)}


@scenario("E-47")
def a_mask_without_a_trailing_dimension(make: Make) -> Any:
    env = make(2, Count)
    return column(env.reset(stepped_once(env).set("_reset", mask(True, False))))


@scenario("E-48", right_in=("serial", "parallel"))
def a_mask_within_a_batch(make: Make) -> Any:
    env = make(2, functools.partial(Count, batch_size=(2,)))
    td = stepped_once(env).set("_reset", mask([True, False], [False, False], width=True))
    return {"observation": column(env.reset(td)), "n_reset": list(env.n_reset)}


@scenario("E-49", right_in=("serial",))
def a_mask_of_nobody(make: Make) -> Any:
    env = make(2, Count)
    got = env.reset(stepped_once(env).set("_reset", mask(False, False, width=True)))
    return {"reset": got, "n_reset": list(env.n_reset)}


@scenario("E-51")
def the_root_mask_chooses(make: Make) -> Any:
    env = make(2, Team)
    td = env.reset()
    td["agents", "action"] = torch.ones(2, 3, 1)
    td = following(env.step(td)).exclude(("agents", "reward"))
    td["_reset"] = mask(True, False, width=True)
    got = env.reset(td)
    return got["agents", "obs"]


@scenario("E-52")
def a_nested_mask_alone(make: Make) -> Any:
    env = make(2, Team)
    td = env.reset()
    td["agents", "_reset"] = torch.ones(2, 3, 1, dtype=torch.bool)
    return error_of(lambda: env.reset(td))


@scenario("E-53")
def what_a_reset_of_the_done_is_given(make: Make) -> Any:
    env = make(2, Count)
    td = following(env.step(acting(env.reset(), 3, 1)))
    env.maybe_reset(td)
    return next(iter(env.keys_seen))


@scenario("E-54")
def keywords_for_all(make: Make) -> Any:
    return make(4, Count).reset(start=5)


@scenario("E-55")
def keywords_per_worker(make: Make) -> Any:
    return make(4, Count).reset(list_of_kwargs=[{"start": i} for i in range(4)])


@scenario("E-56")
def keywords_for_all_win(make: Make) -> Any:
    return make(2, Count).reset(list_of_kwargs=[{"start": 1}, {"start": 2}], start=9)


@scenario("E-58", right_in=("serial", "parallel"))
def keywords_of_skipped_workers(make: Make) -> Any:
    env = make(2, Count)
    td = stepped_once(env).set("_reset", mask(True, False, width=True))
    return column(env.reset(td, list_of_kwargs=[{"start": 7}, {"start": 8}]))


@scenario("E-59", right_in=("serial", "parallel"))
def maybe_reset(make: Make) -> Any:
    env = make(2, Count)
    root = env.maybe_reset(following(env.step(acting(env.reset(), 3, 1))))
    return {"root": root, "n_reset": list(env.n_reset)}


@scenario("E-59")
def maybe_reset_of_nobody(make: Make) -> Any:
    env = make(2, Count)
    td = stepped_once(env)
    return {"same": env.maybe_reset(td) is td, "n_reset": list(env.n_reset)}
