"""A seed fixes the whole future of an environment's stream, whoever steps it."""

from __future__ import annotations

import numpy as np
import pytest
import toys

from rollout_worker.envs.seeding import chain


def first_observations(envs, seeds):
    envs.reset(seeds)
    return envs.carry.arrays["observation",][:, 0, 0].tolist()


@pytest.mark.probe("P-22")
def test_equal_arguments_give_different_streams(open_toys):
    envs = open_toys(toys.Rng, 4, 1)
    seeds, _ = chain(0, 4)
    first = first_observations(envs, seeds)
    assert len(set(first)) == 4
    assert first_observations(envs, seeds) == first
    assert first == [float(np.random.default_rng(seed).random(1)[0]) for seed in seeds]
    assert len(set(first_observations(envs, chain(0, 4, is_static=True)[0]))) == 1


@pytest.mark.probe("P-21")
def test_each_env_gets_the_seed_that_was_meant_for_it(open_toys):
    seeds = [5, None, 2**32 - 1, 2**63]
    envs = open_toys(toys.Count, 4, 1)
    envs.reset(seeds)
    envs.reset()
    assert envs.get_attr("seeds") == [[seed, None] for seed in seeds]


@pytest.mark.probe("P-24")
def test_episodes_go_on_with_one_stream(open_toys, collect):
    envs = open_toys(toys.Rng, 2, 100)
    envs.reset([5, 6])
    first = collect(envs)["observation"]
    assert len(np.unique(first)) == first.size
    envs.reset([5, 6])
    collect(envs, 1)
    envs.reset()
    after_plain_reset = collect(envs, 1)["observation"]
    assert not np.isin(after_plain_reset, first).any()
    envs.reset([5, 6])
    np.testing.assert_array_equal(collect(envs)["observation"], first)


def test_a_seed_without_a_reset_is_used_by_the_next_one(open_toys):
    envs = open_toys(toys.Count, 3, 1)
    envs.set_seed([7, 8, 9])
    envs.reset()
    envs.reset()
    assert envs.get_attr("seeds") == [[7, None], [8, None], [9, None]]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        pytest.param([1, 2], "2 seeds for 3", id="too few"),
        pytest.param([1, -1, 2], "-1", id="negative"),
        pytest.param([1, 2**64, 2], "18446744073709551616", id="too large"),
    ],
)
def test_seeds_that_cannot_be_used_are_refused(open_toys, seeds, message):
    envs = open_toys(toys.Count, 3, 1, num_processes=0)
    with pytest.raises(ValueError, match=message):
        envs.reset(seeds)


@pytest.mark.parametrize("processes", [1, 2])
def test_global_generators_of_a_child_follow_its_first_seed(open_toys, collect, processes):
    envs = open_toys(toys.GlobalRng, 2, 6, num_processes=processes)
    envs.reset([3, 4])
    first = collect(envs)["observation"]
    envs.reset([3, 4])
    np.testing.assert_array_equal(collect(envs)["observation"], first)


@pytest.mark.probe("P-22")
def test_the_number_of_processes_does_not_show(open_toys, collect):
    seeds = [21, 22, 23, 24, 25]
    envs = open_toys(toys.Rng, 5, 33, max_frames_per_traj=7)
    envs.reset(seeds)
    got = collect(envs)
    generators = [np.random.default_rng(seed) for seed in seeds]
    expected = np.empty((5, 34))
    for row, generator in enumerate(generators):
        roots, frames = [], 0
        observation = generator.random()
        for _ in range(34):
            roots.append(observation)
            observation, frames = generator.random(), frames + 1
            if frames == 7:
                observation, frames = generator.random(), 0
        expected[row] = roots
    np.testing.assert_array_equal(got["observation"][..., 0], expected[:, :33])


@pytest.mark.row("E-108")
def test_the_chain_of_seeds_is_the_known_one():
    assert chain(0, 4) == ([0, 795726461, 2841183792, 2309840538], 3018685293)
    assert chain(0, 2)[1] == 2841183792
    assert chain(1, 2) == ([1, 4087425277], 319954611)


@pytest.mark.row("E-109")
def test_a_static_seed_is_everybodys():
    assert chain(5, 4, is_static=True) == ([5, 5, 5, 5], 5)


@pytest.mark.probe("P-23")
@pytest.mark.parametrize("form", ["kwargs", "factories", "index", "closure"])
def test_what_an_env_is_given_is_its_own(open_toys, form):
    shared = {"n": 0}

    def counting(env_index: int = 0) -> toys.Count:
        shared["n"] += 1
        return toys.Count(start=shared["n"])

    import functools

    factory, kwargs, expected = {
        "kwargs": (toys.Who, [{"env_index": i} for i in range(4)], [0, 1, 2, 3]),
        "factories": ([functools.partial(toys.Who, i) for i in range(4)], None, [0, 1, 2, 3]),
        "index": (toys.Who, None, [0, 1, 2, 3]),
        "closure": (counting, None, [1, 1, 1, 1]),
    }[form]
    envs = open_toys(factory, 4, 1, kwargs=kwargs)
    assert first_observations(envs, None) == expected
    assert shared == {"n": 0}
