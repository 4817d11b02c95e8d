"""Rows of "Construction, metadata, lazy start"."""

from __future__ import annotations

import functools
from typing import Any

from parity_api import Composite, ParallelEnv, SerialEnv, TensorDict, Unbounded
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting, column
from parity_toys import Count, Team


@scenario("E-01", "E-02")
def specs_are_known_before_the_start(make: Make) -> Any:
    env = make(4, Count)
    before = env.is_closed
    return {
        "closed": [before, env.is_closed],
        "batch_size": list(env.batch_size),
        "observation": list(env.observation_spec["observation"].shape),
        "action": list(env.action_spec.shape),
        "reward": list(env.reward_spec.shape),
        "done_keys": sorted(env.done_keys),
        "reset_keys": list(env.reset_keys),
    }


@scenario("E-02", "E-41")
def nested_specs_are_known_before_the_start(make: Make) -> Any:
    env = make(2, Team)
    return {
        "observation": list(env.observation_spec["agents", "obs"].shape),
        "action": list(env.full_action_spec["agents", "action"].shape),
        "action_key": env.action_key,
        "reward_key": env.reward_key,
        "done_keys": sorted(map(str, env.done_keys)),
        "reset_keys": sorted(map(str, env.reset_keys)),
        "closed": env.is_closed,
    }


@scenario("E-03")
def one_factory_repeated(make: Make) -> Any:
    return make(3, [Count] * 3).reset()


@scenario("E-03", "E-94")
def two_equal_partials(make: Make) -> Any:
    env = make(2, [functools.partial(Count, start=1), functools.partial(Count, start=2)])
    return {"reset": env.reset(), "step": acting_and_stepped(env)}


def acting_and_stepped(env: Any) -> Any:
    return env.step(acting(env.reset(), 1))


@scenario("E-04")
def keywords_per_worker(make: Make) -> Any:
    return make(2, Count, create_env_kwargs=[{"start": 1}, {"start": 2}]).reset()


class Hollow(Count):
    """Declares an empty composite."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(shape=(1,)), e=Composite())


@scenario("E-07")
def an_empty_composite(make: Make) -> Any:
    return error_of(lambda: make(2, Hollow).observation_spec)


@scenario("E-08")
def withdrawn_keywords(make: Make) -> Any:
    return {
        "pin_memory": error_of(lambda: make(2, Count, pin_memory=True)),
        "allow_step_when_done": error_of(lambda: make(2, Count, allow_step_when_done=True)),
        "memmap": error_of(lambda: make(2, Count, memmap=True)),
        "unknown": error_of(lambda: make(2, Count, no_such_keyword=1)),
        "factories": error_of(lambda: make(3, [Count, Count])),
        "keywords": error_of(lambda: make(3, Count, create_env_kwargs=[{}, {}])),
    }


@scenario("E-09")
def a_step_before_any_reset(make: Make) -> Any:
    env = make(2, Count)
    td = acting(TensorDict({}, batch_size=(2,)), 1)
    stepped = env.step(td)
    return {"observation": column(stepped, ("next", "observation")), "closed": env.is_closed}


@scenario("E-10")
def a_second_start(make: Make) -> Any:
    env = make(2, Count)
    env.start()
    return {"error": error_of(env.start), "reset": env.reset()}


@scenario("E-11")
def specs_are_locked(make: Make) -> Any:
    env = make(2, Count)
    env.reset()

    def write() -> None:
        env.observation_spec["other"] = Unbounded(shape=(2, 1))

    return error_of(write)


@scenario("E-12", "E-13")
def configure_parallel(make: Make) -> Any:
    env = make(2, Count)
    same = env.configure_parallel(shared_memory=True) is env
    env.reset()
    late = error_of(lambda: env.configure_parallel(shared_memory=True))
    env.close()
    return {"same": same, "late": late, "again": env.configure_parallel(shared_memory=True) is env}


@scenario("E-15")
def new_keywords_wait_for_the_next_start(make: Make) -> Any:
    env = make(2, Count)
    env.reset()
    env.update_kwargs({"start": 50})
    before = column(env.reset())
    env.close()
    return {"before": before, "after": column(env.reset())}


@scenario("E-16")
def too_few_new_keywords(make: Make) -> Any:
    env = make(3, Count)
    return error_of(lambda: env.update_kwargs([{}, {}]))


@scenario("E-15")
def new_keywords_per_worker(make: Make) -> Any:
    env = make(2, Count)
    env.update_kwargs([{"start": 3}, {"start": 4}])
    return env.reset()


@scenario("E-19", right_in=("parallel",), ours=("parallel",))
def serial_for_single(make: Make) -> Any:
    one = ParallelEnv(1, Count, serial_for_single=True)
    two = ParallelEnv(2, Count, serial_for_single=True)
    keyword = ParallelEnv(num_workers=1, create_env_fn=Count, serial_for_single=True)
    return {
        "one": [isinstance(one, SerialEnv), list(one.batch_size)],
        "two": [isinstance(two, ParallelEnv), list(two.batch_size)],
        "keyword": [isinstance(keyword, SerialEnv), list(keyword.batch_size)],
    }


@scenario("E-20", right_in=("parallel",), ours=("parallel",))
def forms_of_make_parallel(make: Make) -> Any:
    made = [
        ParallelEnv.make_parallel(Count, num_envs=3),
        ParallelEnv.make_parallel(2, Count),
        ParallelEnv.make_parallel(Count),
        ParallelEnv.make_parallel(create_env_fn=Count, num_envs=2),
        Count.make_parallel(Count, num_envs=4),
        SerialEnv.make_parallel(Count, num_envs=2),
    ]
    return [[type(env).__name__, env.num_workers] for env in made]


@scenario("E-21")
def a_policy_proof_is_kept(make: Make) -> Any:
    calls: list[int] = []

    def proof(td: Any) -> Any:
        calls.append(1)
        return td

    env = make(2, Count, policy_proof=proof)
    env.rollout(2)
    return {"kept": env.policy_proof is proof, "calls": len(calls)}


@scenario("E-22")
def the_text_of_a_batch(make: Make) -> Any:
    env = make(4, Count)
    texts = [str(env)]
    env.reset()
    texts.append(str(env))
    env.close()
    texts.append(str(env))
    return [["Count" in text, "[4]" in text, type(env).__name__ in text] for text in texts]


@scenario("E-23")
def truncated_keys_are_refused(make: Make) -> Any:
    return error_of(make(2, Count).add_truncated_keys)


@scenario("E-03", right_in=("serial", "parallel"))
def plain_attributes(make: Make) -> Any:
    env = make(3, Count, create_env_kwargs={"start": 2})
    return {
        "num_workers": env.num_workers,
        "factories": len(env.create_env_fn),
        "keywords": [dict(each) for each in env.create_env_kwargs],
    }
