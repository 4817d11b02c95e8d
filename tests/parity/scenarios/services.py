"""Seeds, state, attributes, devices, and life."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column, following
from parity_toys import Count


@scenario("E-108")
def a_chain_of_seeds(make: Make) -> Any:
    env = make(4, Count)
    return {"next": env.set_seed(0), "seen": list(env.seed_seen)}


@scenario("E-108")
def a_chain_of_two(make: Make) -> Any:
    return make(2, Count).set_seed(0)


@scenario("E-109")
def the_same_seed_everywhere(make: Make) -> Any:
    env = make(3, Count)
    return {"next": env.set_seed(5, static_seed=True), "seen": list(env.seed_seen)}


@scenario("E-110", right_in=("serial",))
def no_seed(make: Make) -> Any:
    return make(2, Count).set_seed(None)


@scenario("E-112")
def a_seed_starts_a_batch(make: Make) -> Any:
    env = make(2, Count)
    env.set_seed(1)
    return env.is_closed


@scenario("E-113")
def state(make: Make) -> Any:
    env = make(2, Count)
    found = env.state_dict()
    return {name: float(state["buf"]) for name, state in found.items()}


@scenario("E-114")
def loading_state_per_worker(make: Make) -> Any:
    env = make(3, Count)
    env.load_state_dict({f"worker{i}": {"buf": torch.tensor(float(i))} for i in range(3)})
    return {name: float(state["buf"]) for name, state in env.state_dict().items()}


@scenario("E-115")
def loading_one_state_into_all(make: Make) -> Any:
    env = make(2, Count)
    env.load_state_dict({"buf": torch.tensor(9.0)})
    return {name: float(state["buf"]) for name, state in env.state_dict().items()}


@scenario("E-118")
def an_attribute(make: Make) -> Any:
    env = make(4, Count)
    env.reset()
    return list(env.tag)


@scenario("E-119")
def a_method(make: Make) -> Any:
    env = make(4, Count)
    env.reset()
    return list(env.hello(1, y=2))


@scenario("E-120", right_in=("parallel", "direct"), ours=("parallel", "direct", "one child"))
def the_batch_itself_is_not_passed_on(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    return list(env.hello(env, 3))


@scenario("E-121")
def names_of_the_batch(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    return [list(env.batch_size), env.training, env.num_workers]


@scenario("E-122")
def assignment_stays_with_the_batch(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    env.tag = "mine"
    own = env.tag
    del env.tag
    return [own, list(env.tag)]


@scenario("E-126", right_in=("serial",))
def a_method_that_raises(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    return {"error": error_of(lambda: env.fail()), "after": env.reset()}


@scenario("E-127")
def tensors_go_by_value(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    given = torch.ones(2)
    found = list(env.twice(given))
    return [given, *found]


@scenario("E-129", right_in=("serial", "parallel"))
def no_device(make: Make) -> Any:
    env = make(2, Count)
    return [env.device, env.reset().device]


@scenario("E-130")
def a_device(make: Make) -> Any:
    env = make(2, Count, device="cpu")
    td = env.step(acting(env.reset(), 1))
    return [env.device, td.device, td["next"].device, env.observation_spec.device]


@scenario("E-131")
def to_a_device(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    moved = env.to("cpu")
    return [moved is env, env.device, env.reset().device, column(env.reset())]


@scenario("E-140", "E-141")
def closing(make: Make) -> Any:
    env = make(2, Count)
    never = error_of(env.close)
    env.close(raise_if_closed=False)
    env.reset()
    env.close()
    return {"never": never, "closed": env.is_closed, "again": error_of(env.close)}


@scenario("E-142")
def a_reset_after_closing(make: Make) -> Any:
    env = make(4, Count)
    env.step(acting(env.reset(), 1))
    env.close()
    return env.reset()


@scenario("E-143", right_in=("parallel", "direct"), ours=("parallel", "direct", "one child"))
def a_copy_counts_from_the_start(make: Make) -> Any:
    env = make(2, Count)
    env.step(acting(env.reset(), 1))
    twin = copy.deepcopy(env)
    try:
        return column(twin.step(acting(twin.reset(), 1)), ("next", "observation"))
    finally:
        twin.close(raise_if_closed=False)


@scenario("E-144", right_in=("serial",), ours=("serial",))
def a_pickled_serial_batch_goes_on(make: Make) -> Any:
    env = make(2, Count)
    td = following(env.step(acting(env.reset(), 1)))
    twin = pickle.loads(pickle.dumps(env))  # noqa: S301 (its own bytes)
    try:
        stepped = column(twin.step(acting(td.clone(), 1)), ("next", "observation"))
        return {"open": [not env.is_closed, not twin.is_closed], "copy": stepped}
    finally:
        twin.close(raise_if_closed=False)
