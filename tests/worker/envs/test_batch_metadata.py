"""What a batch knows of its environments beforehand: looked at, given, or told by the environments themselves."""

from __future__ import annotations

import functools
import os
import pickle

import gymnasium
import pytest
import torch
import toys
import toys_made
import toys_td
from gymnasium import spaces
from toys_td import CountEnv

from rollout_worker.envs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    EnvCreator,
    EnvMetaData,
    GymEnv,
    MetaDataMismatch,
    NonTensor,
    ParallelEnv,
    SerialEnv,
    Unbounded,
)


@pytest.fixture
def log(tmp_path):
    """The file in which environments note where they were made."""
    path = tmp_path / "made"
    path.write_text("")
    return path


def noted(log, kind="ours", **kwargs):
    return functools.partial(toys_made.noted, str(log), kind, **kwargs)


def made_in(log):
    return [int(line) for line in log.read_text().split()]


def acted(td, env, kind):
    """A root with what its environments take."""
    td = env.rand_action(td)
    if kind == "open":
        td["action"] = torch.ones_like(td["action"])
    return td.set("hid", torch.zeros(*td.batch_size, 2)) if kind == "state" else td


COUNT = {"observation_spec": Composite(observation=Unbounded((1,))), "action_spec": Unbounded((1,))}

BY_HAND = {
    "ours": lambda: EnvMetaData.of_specs(**COUNT),
    "gymnasium": lambda: EnvMetaData.of_spaces(toys.Count().observation_space, spaces.Discrete(2)),
    "cartpole": lambda: EnvMetaData.metadata_from_env(gymnasium.make("CartPole-v1")),
    "adapted": lambda: EnvMetaData.metadata_from_env(GymEnv("CartPole-v1")),
    "agents": lambda: EnvMetaData.of_specs(
        Composite(agents=Composite(obs=Unbounded((3, 2)), shape=(3,))),
        Composite(agents=Composite(action=Unbounded((3, 1)), shape=(3,))),
        reward_spec=Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,))),
        done_spec=Composite(
            done=Binary(shape=(1,), dtype=torch.bool),
            agents=Composite(done=Binary(shape=(3, 1), dtype=torch.bool), shape=(3,)),
        ),
    ),
    "wide": lambda: EnvMetaData.of_specs(
        Composite(observation=Unbounded((2, 1)), shape=(2,)),
        Unbounded((2, 1)),
        batch_size=(2,),
    ),
    "texts": lambda: EnvMetaData.of_specs(Composite(text=NonTensor(shape=())), Unbounded((1,))),
    "open": lambda: EnvMetaData.of_specs(
        Composite(observation=Unbounded((1,)), var=Unbounded((-1, 2))), Unbounded((1,))
    ),
    "state": lambda: EnvMetaData.of_specs(**COUNT, state_spec=Composite(hid=Unbounded((2,)))),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_metadata_by_hand_spares_an_environment(make, log, kind):
    given = BY_HAND[kind]()
    log.write_text("")
    env = make(3, noted(log, kind), meta_data=given)
    assert env.is_closed
    assert made_in(log) == []
    like = make(3, noted(log, kind))
    looked = len(made_in(log))
    assert looked == 1
    assert env.observation_spec == like.observation_spec
    assert env.input_spec == like.input_spec
    assert env.output_spec == like.output_spec
    assert env.batch_size == like.batch_size
    env.step(acted(env.reset(), env, kind))
    made = made_in(log)[looked:]
    assert len(made) == 3
    assert (set(made) == {os.getpid()}) is make.is_serial


@pytest.mark.parametrize("kind", BY_HAND)
def test_environments_tell_what_they_are(make, log, kind):
    env = make(4, noted(log, kind), meta_data="workers")
    made = made_in(log)
    assert len(made) == 4
    assert (set(made) == {os.getpid()}) is make.is_serial
    assert not env.is_closed
    like = SerialEnv(4, toys_made.KINDS[kind])
    assert env.observation_spec == like.observation_spec
    assert env.input_spec == like.input_spec
    assert env.output_spec == like.output_spec
    env.set_seed(3)
    like.set_seed(3)
    if kind != "open":
        assert (env.reset() == like.reset()).all()
    env.step(acted(env.reset(), env, kind))
    assert len(made_in(log)) == 4
    env.close()
    env.reset()
    assert len(made_in(log)) == 8, "it knows now what they are"
    like.close()


def test_a_block_stays_a_block(log):
    """What was looked at in its own process is stepped as fast as what was looked at here."""
    for meta_data in (None, "workers", BY_HAND["cartpole"]()):
        env = ParallelEnv(
            2, noted(log, "cartpole"), meta_data=meta_data, mp_start_method="fork", num_processes=2
        )
        env.reset()
        assert env.shared_tensordict_parent["observation"].shape == (2, 4)
        assert type(env.vector).__name__ == "VectorEnv"
        env.close()


def test_unlike_environments_tell_what_they_are(make, log):
    env = make(
        2,
        [functools.partial(CountEnv, extra=1), functools.partial(CountEnv, extra=2)],
        meta_data="workers",
    )
    assert env.share_individual_td
    assert [tuple(row["extra"].shape) for row in env.reset().unbind(0)] == [(1,), (2,)]


def test_one_record_for_each(make, log):
    kinds = ["ours", "agents"]
    env = make(2, [noted(log, kind) for kind in kinds], meta_data=[BY_HAND[kind]() for kind in kinds])
    env.reset()
    assert len(made_in(log)) == 2
    assert len(env.meta_data) == 2


# -- creators ----------------------------------------------------------------------------------------------------------


def test_a_creator_that_is_told(make, log):
    creator = EnvCreator(noted(log), meta_data=BY_HAND["ours"]())
    env = make(2, creator)
    env.reset()
    made = made_in(log)
    assert len(made) == 2
    assert creator.state_dict() == {}
    with pytest.raises(TypeError, match="meta_data must be an EnvMetaData, not dict"):
        EnvCreator(noted(log), meta_data={})


def test_variants_of_a_creator_make_no_environment(make, log):
    creator = EnvCreator(noted(log), start=1)
    other = creator.make_variant(start=5)
    assert len(made_in(log)) == 1
    assert creator.create_env_kwargs == {"start": 1}
    env = make(2, [creator, other])
    assert env.reset()["observation"].tolist() == [[1], [5]]
    assert len(made_in(log)) == 3


def test_what_a_creator_is_told_is_compared_too(make, log):
    env = make(2, EnvCreator(noted(log, extra=3), meta_data=BY_HAND["ours"]()))
    with pytest.raises(MetaDataMismatch, match=r"'extra': given nothing, reported Unbounded\(shape=\(3,\)"):
        env.reset()


@pytest.mark.parametrize("is_serial", [True, False])
def test_make_parallel_takes_metadata(log, is_serial):
    more = {"serial_for_single": True} if is_serial else {"mp_start_method": "fork", "num_processes": 1}
    num_envs = 1 if is_serial else 2
    env = CountEnv.make_parallel(noted(log), num_envs=num_envs, meta_data=BY_HAND["ours"](), **more)
    assert isinstance(env, SerialEnv if is_serial else ParallelEnv)
    env.reset()
    assert len(made_in(log)) == num_envs
    env.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_metadata_with_every_start_method(log, method):
    for meta_data in (BY_HAND["gymnasium"](), "workers"):
        before = len(made_in(log))
        env = ParallelEnv(
            3, noted(log, "gymnasium"), meta_data=meta_data, mp_start_method=method, num_processes=2
        )
        assert env.rollout(4, break_when_any_done=False)["observation"].shape == (3, 4, 1)
        env.close()
        made = made_in(log)[before:]
        assert len(made) == 3
        assert os.getpid() not in made


# -- what does not agree -----------------------------------------------------------------------------------------------

WRONG = [
    pytest.param("ours", COUNT | {"observation_spec": Composite(observation=Unbounded((2,)))},
                 r"observation 'observation': given Unbounded\(shape=\(2,\), dtype=float32\), reported Unbounded",
                 id="shape"),
    pytest.param("ours", COUNT | {"observation_spec": Composite(observation=Unbounded((1,), dtype=torch.float64))},
                 r"'observation': given .*float64\), reported .*float32", id="dtype"),
    pytest.param("ours", COUNT | {"observation_spec": Composite(observed=Unbounded((1,)))},
                 r"'observed': given Unbounded.*, reported nothing\n.*'observation': given nothing, reported Unb", id="key"),
    pytest.param("ours", COUNT | {"action_spec": Bounded(-1, 1, (1,))},
                 r"action 'action': given Bounded.*, reported Unbounded", id="kind"),
    pytest.param("ours", COUNT | {"reward_spec": Unbounded((2,))}, r"reward 'reward': given .*\(2,\)", id="reward"),
    pytest.param("ours", COUNT | {"state_spec": Composite(hid=Unbounded((2,)))}, r"state 'hid': given .*reported nothing",
                 id="state"),
    pytest.param("ours", {"observation_spec": Composite(observation=Unbounded((3, 1)), shape=(3,)),
                          "action_spec": Unbounded((3, 1)), "batch_size": (3,)},
                 r"batch size: given \[3\], reported \[\]", id="batch size"),
    pytest.param("state", COUNT, r"state 'hid': given nothing, reported Unbounded", id="an unknown state"),
    pytest.param("agents", COUNT, r"observation \('agents', 'obs'\): given nothing, reported Unbounded\(shape=\(3, 2\)",
                 id="nested"),
    pytest.param("wide", COUNT, r"batch size: given \[\], reported \[2\]", id="no batch size"),
    pytest.param("texts", COUNT, r"observation 'text': given nothing, reported NonTensor", id="a text"),
    pytest.param("open", {**COUNT, "observation_spec": Composite(observation=Unbounded((1,)), var=Unbounded((3, 2)))},
                 r"'var': given .*\(3, 2\).*reported .*\(-1, 2\)", id="an open size"),
    pytest.param("gymnasium", COUNT, r"action 'action': given Unbounded.*reported Categorical", id="of gymnasium"),
    pytest.param("cartpole", {"observation_spec": Composite(observation=Bounded(-1.0, 1.0, (4,))),
                              "action_spec": Categorical(3)},
                 r"'observation': given Bounded\(shape=\(4,\), dtype=float32, bounds -1.0 to 1.0\), reported .*bounds \[.*"
                 r"\n.*action 'action': given Categorical\(shape=\(\), dtype=int64, n=3\), reported .*n=2", id="limits"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "message"), WRONG)
def test_wrong_metadata_is_refused(make, log, leftovers, kind, given, message):
    before = leftovers()
    env = make(3, noted(log, kind), meta_data=EnvMetaData.of_specs(**given))
    with pytest.raises(
        MetaDataMismatch, match=r"environment 0 is not what is known of it.*1, 2(?s:.*)" + message
    ) as info:
        env.reset()
    assert info.value.env_index == 0
    assert info.value.differences
    assert "meta_data" in str(info.value)
    assert env.is_closed
    assert "children" not in leftovers(before)
    assert len(made_in(log)) == 3


def test_spaces_of_what_is_no_gymnasium_environment(make, log):
    given = EnvMetaData.of_spaces(
        spaces.Box(-torch.inf, torch.inf, (1,)), spaces.Box(-torch.inf, torch.inf, (1,))
    )
    env = make(2, noted(log), meta_data=given)
    with pytest.raises(
        MetaDataMismatch, match=r"kind: given a gymnasium environment, reported .*takes tensordicts"
    ):
        env.reset()


def test_specs_of_a_gymnasium_environment_will_do(make, log):
    given = EnvMetaData.of_specs(
        Composite(observation=Bounded(toys.INT64.min, toys.INT64.max, (1,), dtype=torch.int64)),
        Categorical(2),
    )
    env = make(2, noted(log, "gymnasium", k=2), meta_data=given)
    td = env.reset()
    for _ in range(3):
        _, td = env.step_and_maybe_reset(env.rand_action(td))
    assert td["observation"].tolist() == [[1], [1]]
    td["_reset"] = torch.tensor([[True], [False]])
    assert env.reset(td)["observation"].tolist() == [[0], [1]]


def test_the_environment_that_differs_is_named(make):
    env = make(4, toys_made.by_index, meta_data=EnvMetaData.metadata_from_env(CountEnv(extra=1)))
    with pytest.raises(
        MetaDataMismatch, match=r"environment 2 is not .*\n.*'extra': given .*\(1,\).*reported .*\(2,\)"
    ):
        env.start()


def test_what_was_looked_at_is_compared_too(make):
    env = make(3, toys_made.by_index)
    with pytest.raises(
        MetaDataMismatch, match=r"environment 2 .*\n.*'extra': in the caller's process .*\(1,\).*\(2,\)"
    ):
        env.reset()


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["buffers", "direct"])
def test_an_environment_that_differs_in_its_process(more):
    factory = functools.partial(toys_made.by_process, os.getpid())
    env = ParallelEnv(2, factory, mp_start_method="fork", num_processes=2, **more)
    with pytest.raises(
        MetaDataMismatch, match=r"'extra': in the caller's process nothing, reported Unbounded"
    ):
        env.reset()
    env.close(raise_if_closed=False)


def test_told_apart_by_one_factory(make):
    with pytest.raises(
        ValueError, match=r"'extra'.*\(1,\).* in environment 0 against .*\(2,\).*environment 2"
    ):
        make(3, toys_made.by_index, meta_data="workers")


def test_new_keywords_must_fit_what_is_known(make):
    env = make(2, CountEnv)
    env.update_kwargs({"start": 4})
    assert env.reset()["observation"].tolist() == [[4], [4]]
    env.close()
    env.update_kwargs({"extra": 2})
    with pytest.raises(MetaDataMismatch, match="'extra'"):
        env.reset()


@pytest.mark.parametrize("failing", ["raise", "kill"])
def test_environments_that_cannot_be_made_to_be_looked_at(make, leftovers, failing):
    if failing == "kill" and make.is_serial:
        failing = "sys.exit"
    before = leftovers()
    with pytest.raises(RuntimeError, match="environment"):
        make(3, functools.partial(toys.Fault, failing, "constructor", 1), meta_data="workers")
    assert leftovers(before) == {}


def test_a_process_that_dies_after_it_was_looked_at(make):
    if make.is_serial:
        env = make(2, CountEnv, meta_data="workers", on_env_error="restart")
        assert env.restarts == [0, 0]
        return
    env = make(2, CountEnv, meta_data="workers", on_env_error="restart")
    td = env.rand_action(env.reset())
    os.kill(env.vector.pids[0], 9)
    following = env.step(td)["next"]
    assert not following["valid"].all()
    assert env.step(env.rand_action(env.reset()))["next", "valid"].all()
    assert sum(env.restarts) >= 1


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        pytest.param("worker", TypeError, "meta_data must be an EnvMetaData.*'worker' is none", id="a typo"),
        pytest.param({"a": 1}, TypeError, "dict is none of them", id="a mapping"),
        pytest.param([BY_HAND["ours"]()], RuntimeError, "holds 1 records for 2 environments", id="too few"),
        pytest.param([BY_HAND["ours"](), CountEnv], TypeError, r"meta_data\[1\]", id="one is none"),
        pytest.param(
            CountEnv(), TypeError, "CountEnv is none of them.*metadata_from_env", id="an environment"
        ),
    ],
)
def test_what_is_no_metadata(make, given, error, message):
    with pytest.raises(error, match=message):
        make(2, CountEnv, meta_data=given)


@pytest.mark.parametrize("kind", BY_HAND)
def test_metadata_can_be_kept(log, kind):
    kept = pickle.loads(pickle.dumps(SerialEnv(2, toys_made.KINDS[kind]).meta_data))  # noqa: S301 (our own bytes)
    env = SerialEnv(2, noted(log, kind), meta_data=kept)
    env.reset()
    assert len(made_in(log)) == 2


def test_specs_that_cannot_be():
    with pytest.raises(TypeError, match="observation_spec must be a Composite"):
        EnvMetaData.of_specs(Unbounded((1,)), Unbounded((1,)))
    with pytest.raises(RuntimeError, match="empty composite"):
        EnvMetaData.of_specs(Composite(a=Composite()), Unbounded((1,)))
    with pytest.raises(TypeError, match="the factory made int"):
        EnvMetaData.metadata_from_env(3)
    with pytest.raises(ValueError, match="'reward'"):
        EnvMetaData.of_spaces(spaces.Dict(reward=spaces.Discrete(2)), spaces.Discrete(2))


def test_nothing_runs_while_a_look_is_refused(make, leftovers):
    """Environments whose rows cannot be put together are closed again."""
    before = leftovers()
    factories = [CountEnv, toys_td.Team]
    with pytest.raises(ValueError, match="share_individual_td=False"):
        make(2, factories, meta_data="workers", share_individual_td=False)
    assert leftovers(before) == {}
