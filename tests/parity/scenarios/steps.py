"""Rows of "Step and partial step" and of "step_and_maybe_reset"."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parity_run import Make, scenario
from parity_tools import acting, column, following, mask, names
from parity_toys import Count, Team


def uneven(env: Any) -> Any:
    """A root with the observations 0, 1, 0, 1."""
    td = following(env.step(acting(env.reset(), 1)))
    return env.reset(td.set("_reset", mask(True, False, True, False, width=True)))


@scenario("E-60", "E-61")
def a_partial_step(make: Make) -> Any:
    env = make(4, Count)
    td = uneven(env).set("_step", mask(True, False, True, False, width=True))
    return {"next": env.step(acting(td, 1))["next"], "n_step": list(env.n_step)}


@scenario("E-61")
def a_skipped_row_repeats_its_flags(make: Make) -> Any:
    env = make(2, Count)
    td = following(env.step(acting(env.reset(), 3, 1))).set("_step", mask(False, True))
    return env.step(acting(td, 1))["next"]


@scenario("E-62")
def a_step_mask_without_a_trailing_dimension(make: Make) -> Any:
    env = make(2, functools.partial(Count, start=100))
    td = env.reset().set("_step", mask(True, False))
    return column(env.step(acting(td, 1)), ("next", "observation"))


@scenario("E-63")
def a_mask_of_all(make: Make) -> Any:
    env = make(2, functools.partial(Count, start=100))
    return env.step(acting(env.reset(), 1).set("_step", mask(True, True)))["next"]


@scenario("E-66")
def where_the_mask_stays(make: Make) -> Any:
    env = make(2, Count)
    stepped = env.step(acting(env.reset().set("_step", mask(True, False)), 1))
    return {"root": stepped["_step"].reshape(-1).tolist(), "next": names(stepped["next"])}


@scenario("E-71")
def a_done_environment_is_stepped(make: Make) -> Any:
    env = make(1, functools.partial(Count, start=100))
    td = following(env.step(acting(env.reset(), 3)))
    return {"next": env.step(acting(td, 1))["next"], "n_reset": list(env.n_reset)}


@scenario("E-72")
def nobody_is_done(make: Make) -> Any:
    env = make(4, Count)
    td = acting(env.reset(), 1)
    stepped, root = env.step_and_maybe_reset(td)
    return {"same": stepped is td, "stepped": stepped, "root": root, "keys": names(root)}


@scenario("E-73", right_in=("parallel",))
def one_row_is_done(make: Make) -> Any:
    env = make(4, Count)
    _, root = env.step_and_maybe_reset(acting(env.reset(), 1))
    stepped, root = env.step_and_maybe_reset(acting(root, 2, 1, 1, 1))
    return {"stepped": stepped, "root": root, "n_reset": list(env.n_reset)}


@scenario("E-74", right_in=("parallel",))
def a_mask_in_step_and_maybe_reset(make: Make) -> Any:
    env = make(4, Count)
    td = following(env.step(acting(env.reset(), 2)))
    td = env.reset(td.set("_reset", mask(True, False, False, False, width=True)))
    stepped, root = env.step_and_maybe_reset(acting(td.set("_step", mask(True, False, False, True)), 1))
    return {"next": stepped["next"], "root": root.exclude("_step")}


@scenario("E-75", right_in=("parallel",))
def a_skipped_row_that_is_done(make: Make) -> Any:
    env = make(2, functools.partial(Count, start=100))
    td = following(env.step(acting(env.reset(), 3, 1))).set("_step", mask(False, True))
    stepped, root = env.step_and_maybe_reset(acting(td, 1))
    return [[column(found), column(found, "done")] for found in (stepped["next"], root)]


@scenario("E-76", right_in=("parallel",))
def nested_flags(make: Make) -> Any:
    env = make(2, Team)
    td = env.reset()
    td["agents", "action"] = torch.tensor([[[1.0], [2.0], [2.5]], [[2.0], [2.0], [3.0]]])
    stepped, root = env.step_and_maybe_reset(td)
    return {"next": stepped["next"], "root": root, "n_reset": list(env.n_reset)}


@scenario("E-25", right_in=("parallel",))
def several_steps(make: Make) -> Any:
    env = make(3, functools.partial(Count, k=5))
    td, found = env.reset(), []
    for _ in range(7):
        stepped, td = env.step_and_maybe_reset(acting(td, 1, 2, 5))
        found.append(stepped.clone())
    return found
