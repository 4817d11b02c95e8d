"""Rollouts, values under `next`, and texts."""

from __future__ import annotations

import functools
from typing import Any

import torch
from parity_api import TensorDict
from parity_run import Make, scenario
from parity_tools import acting, column, following, mask, policy
from parity_toys import Count, Recurrent, Words


@scenario("E-77")
def until_any_is_done(make: Make) -> Any:
    got = make(4, Count).rollout(5, policy(1, 1, 1, 0.5))
    return {"names": list(got.names), "rollout": got}


@scenario("E-78")
def on_and_on(make: Make) -> Any:
    return make(4, Count).rollout(5, policy(1, 1, 1, 0.5), break_when_any_done=False)


@scenario("E-79")
def until_all_are_done(make: Make) -> Any:
    env = make(2, functools.partial(Count, start=100))
    return env.rollout(9, policy(1, 0.75), break_when_any_done=False, break_when_all_done=True)["next"]


@scenario("E-81")
def from_a_root(make: Make) -> Any:
    env = make(1, functools.partial(Count, k=9))
    _, root = env.step_and_maybe_reset(acting(env.reset(), 1))
    return env.rollout(2, policy(1), auto_reset=False, tensordict=root)


@scenario("E-77")
def one_frame_marked_as_the_last(make: Make) -> Any:
    got = make(2, functools.partial(Count, k=9)).rollout(3, policy(1), set_truncated=True)
    return {name: column(got, ("next", name)) for name in ("done", "terminated", "truncated")}


@scenario("E-77")
def a_callback_sees_every_step(make: Make) -> Any:
    seen: list[Any] = []
    make(2, Count).rollout(2, policy(1), callback=lambda env, td: seen.append(td.clone()))
    return [column(td) for td in seen]


@scenario("E-77")
def a_contiguous_result(make: Make) -> Any:
    return make(2, Count).rollout(3, policy(1), return_contiguous=True).batch_size == (2, 3)


@scenario("E-83", right_in=("serial", "parallel"))
def a_value_under_next(make: Make) -> Any:
    env = make(2, functools.partial(Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    td["next"] = TensorDict({"hid": torch.tensor([[10.0, 10.0], [20.0, 20.0]])}, batch_size=(2,))
    return {"next": env.step(td)["next", "hid"], "seen": list(env.seen)}


@scenario("E-84", right_in=("serial", "parallel"))
def a_value_under_next_goes_on(make: Make) -> Any:
    env = make(2, functools.partial(Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.ones(2, 2))
    td["next"] = TensorDict({"hid": torch.tensor([[10.0, 10.0], [20.0, 20.0]])}, batch_size=(2,))
    stepped, root = env.step_and_maybe_reset(td)
    return {"next": stepped["next", "hid"], "root": root["hid"]}


@scenario("E-85", right_in=("serial",))
def an_unknown_key_under_next(make: Make) -> Any:
    env = make(2, Count)
    td = acting(env.reset(), 1)
    td["next"] = TensorDict({"foo": torch.tensor([1.0, 2.0])}, batch_size=(2,))
    stepped, _ = env.step_and_maybe_reset(td)
    return stepped["next"]


@scenario("E-86")
def a_flag_under_next(make: Make) -> Any:
    env = make(2, Count)
    td = acting(env.reset(), 1)
    td["next"] = TensorDict({"done": torch.ones(2, 1, dtype=torch.bool)}, batch_size=(2,))
    return env.step(td)["next", "done"]


@scenario("E-87", right_in=("serial", "parallel"))
def a_step_without_next_afterwards(make: Make) -> Any:
    env = make(2, functools.partial(Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.ones(2, 2))
    td["next"] = TensorDict({"hid": torch.full((2, 2), 10.0)}, batch_size=(2,))
    td = following(env.step(td))
    return env.step(acting(td, 1))["next", "hid"]


@scenario("E-88", right_in=("serial", "parallel"))
def a_value_under_next_of_a_skipped_row(make: Make) -> Any:
    env = make(2, functools.partial(Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.ones(2, 2))
    td["next"] = TensorDict({"hid": torch.tensor([[10.0, 10.0], [20.0, 20.0]])}, batch_size=(2,))
    return env.step(td.set("_step", mask(False, True)))["next", "hid"]


@scenario("E-89")
def texts(make: Make) -> Any:
    env = make(2, Words)
    td = env.reset()
    first = list(td.get("text").tolist() if hasattr(td.get("text"), "tolist") else td.get("text"))
    return {"reset": first, "step": env.step(acting(td, 1))["next"]}


@scenario("E-70", right_in=("serial",))
def a_skipped_row_repeats_its_text(make: Make) -> Any:
    env = make(2, Words)
    td = acting(env.reset(), 1).set("_step", mask(True, False))
    return env.step(td)["next"].select("text")


@scenario("E-90", right_in=("serial",))
def a_partial_reset_of_texts(make: Make) -> Any:
    env = make(2, Words)
    td = following(env.step(acting(env.reset(), 1))).set("_reset", mask(True, False, width=True))
    return env.reset(td).select("text")


@scenario("E-91", right_in=("serial",))
def an_automatic_reset_of_texts(make: Make) -> Any:
    env = make(2, Words)
    stepped, root = env.step_and_maybe_reset(acting(env.reset(), 1, 3))
    return {"next": stepped["next"].select("text"), "root": root.select("text")}


@scenario("E-92")
def a_rollout_of_texts(make: Make) -> Any:
    env = make(2, functools.partial(Words, k=4))
    return env.rollout(4, policy(1, 2), break_when_any_done=False)["next"].select("text")
