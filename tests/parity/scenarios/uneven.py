"""Heterogeneous environments, open shapes, and data that goes without buffers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column, following, mask, policy
from parity_toys import Count, Growing

ONE_EXTRA = [functools.partial(Count), functools.partial(Count, extra=2)]
TWO_EXTRA = [functools.partial(Count, extra=3), functools.partial(Count, extra=2)]


@scenario("E-94")
def equal_specs_give_dense_results(make: Make) -> Any:
    env = make(2, [functools.partial(Count, k=3), functools.partial(Count, k=4)])
    td = env.reset()
    return {"type": type(td).__name__, "reset": td}


@scenario("E-95", right_in=("serial", "parallel"))
def a_key_of_one_row(make: Make) -> Any:
    env = make(2, ONE_EXTRA)
    td = env.reset()
    return {
        "reset": td,
        "keys": sorted(td.keys()),
        "row": td[1]["extra"],
        "error": error_of(lambda: td["extra"]),
    }


@scenario("E-96", right_in=("serial", "parallel"))
def a_key_of_two_shapes(make: Make) -> Any:
    env = make(2, TWO_EXTRA)
    td = env.reset()
    got = env.rollout(3, policy(1), break_when_any_done=False)
    return {"reset": td, "rollout": [list(got.batch_size), list(got[1]["extra"].shape)]}


@scenario("E-97", right_in=("serial", "parallel"))
def a_partial_reset_of_two_shapes(make: Make) -> Any:
    env = make(2, TWO_EXTRA)
    td = following(env.step(acting(env.reset(), 1)))
    td = env.reset(td.set("_reset", mask(True, False, width=True)))
    return [td[0]["extra"], td[1]["extra"]]


@scenario("E-98")
def rows_that_do_not_stack(make: Make) -> Any:
    return error_of(lambda: make(2, TWO_EXTRA, share_individual_td=False).observation_spec)


@scenario("E-99", right_in=("serial", "parallel"))
def lazy_results_on_demand(make: Make) -> Any:
    env = make(2, Count, share_individual_td=True)
    td = env.reset()
    return {"type": type(td).__name__, "reset": td}


@scenario("E-103")
def an_open_shape(make: Make) -> Any:
    env = make(2, Growing)
    td = env.step(acting(env.reset(), 1, 2))
    return [list(row["var"].shape) for row in td["next"].unbind(0)]


@scenario("E-103")
def an_open_shape_that_agrees(make: Make) -> Any:
    return make(2, Growing).reset()["var"]


@scenario("E-104")
def a_partial_reset_of_an_open_shape(make: Make) -> Any:
    env = make(2, Growing)
    td = following(env.step(acting(env.reset(), 1)))
    td = env.reset(td.set("_reset", mask(True, False, width=True)))
    return [list(row["var"].shape) for row in td.unbind(0)]


@scenario("E-106", "E-107")
def rollouts_agree_in_every_mode(make: Make) -> Any:
    return make(2, functools.partial(Count, k=4)).rollout(6, policy(1, 2), break_when_any_done=False)


@scenario("E-107", right_in=("direct",), ours=("direct",))
def unpacked_tensordicts(make: Make) -> Any:
    return make(2, Count, consolidate=False).rollout(2, policy(1))


@scenario("E-102", right_in=("serial", "parallel"))
def open_beside_fixed(make: Make) -> Any:
    env = make(2, [functools.partial(Growing), functools.partial(Growing, k=5)])
    td = env.step(acting(env.reset(), 1, 1))
    return [column(td, ("next", "observation")), [list(row["var"].shape) for row in td["next"].unbind(0)]]


@scenario("E-106")
def nested_resets_agree_in_every_mode(make: Make) -> Any:
    env = make(2, functools.partial(Count, k=2, batch_size=(2,)))
    td, found = env.reset(), []
    for _ in range(4):
        td = td.set("action", torch.tensor([[[1.0], [2.0]], [[1.0], [0.5]]]))
        stepped, td = env.step_and_maybe_reset(td)
        found.append([column(stepped, ("next", "observation")), column(td), column(td, "done")])
    return found
