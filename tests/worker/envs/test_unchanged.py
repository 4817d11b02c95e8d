"""Leaves that are no tensors: what is a constant and has not changed is not sent again, and nothing is ever shown stale."""

from __future__ import annotations

import functools
import os
import pickle

import numpy as np
import pytest
import torch
import toys
import toys_made

from rollout_worker.envs import ParallelEnv, SerialEnv, open_envs
from rollout_worker.envs.unchanged import Memory, is_constant, is_same

CONSTANTS = [
    "text", "", b"bytes", 3, 2**80, True, False, None, ..., 1.5, float("nan"), 0.0, -0.0, 1j, (), (1, ("a", None)),
    frozenset({"a"}), np.float32(1.5), np.int64(3), np.bool_(True), np.str_("text"),
]  # fmt: skip


class Named(str):
    """A text that can be changed."""

    __slots__ = ("more",)


CHANGEABLE = [
    [], {}, set(), bytearray(b"a"), np.zeros(2), (1, []), (1, {"a": 1}), Named("a"), object(), torch.zeros(1), range,
    np.void(b"ab"), [1, 2], (np.zeros(1),),
]  # fmt: skip


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_constants(value):
    assert is_constant(value)
    assert is_same(value, pickle.loads(pickle.dumps(value)))  # noqa: S301 (our own bytes)
    memory = Memory()
    assert not memory.holds("there", value)
    assert memory.holds("there", pickle.loads(pickle.dumps(value)))  # noqa: S301
    assert not memory.holds("elsewhere", value)


@pytest.mark.parametrize("value", CHANGEABLE, ids=lambda value: type(value).__name__)
def test_what_can_be_changed_is_never_held(value):
    assert not is_constant(value)
    memory = Memory()
    memory.write("there", "before")
    assert not memory.holds("there", value)
    assert not memory.holds("there", value)
    assert not memory.holds("there", "before"), "it was overwritten"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ("1", 1), (None, False), ("", None), ((), None), ((1,), (True,)), ((1, 2), (1,)),
        (1.0, np.float64(1.0)), (np.float32(1), np.float64(1)), ("a", np.str_("a")), (b"a", "a"), ((0.0,), (-0.0,)),
        (0j, -0j), (frozenset({1}), frozenset({True})),
    ],
)  # fmt: skip
def test_what_can_be_told_apart_is_not_the_same(one, other):
    assert not is_same(one, other)
    assert not is_same(other, one)


# -- in batches --------------------------------------------------------------------------------------------------------

RISING = [1, True, 1.0, "1", None, (1,), (True,), "", "same", "same", "same", -0.0, 0.0, 0.0, b"", "same"]

SHOWS = {
    "constant": lambda n: "the mission",
    "kinds": lambda n: RISING[n % len(RISING)],
    "nan": lambda n: float("nan"),
    "back": lambda n: "ab"[n // 3 % 2],
    "dict": lambda n: {"n": n, "deep": [n // 2]},
    "mixed": lambda n: "text" if n % 4 < 2 else ["a", n],
    "arrays": lambda n: np.full(2, n // 3),
}


def told(td):
    said = td.get("said")
    return said.tolist() if hasattr(said, "tolist") else said


@pytest.mark.parametrize("show", SHOWS)
@pytest.mark.parametrize("size", [(), (2,)], ids=["one", "two"])
def test_every_value_arrives_as_it_is(make, show, size):
    """Steps, resets, and steps of some: always what an environment of this process gives."""
    factory = functools.partial(toys_made.Told, SHOWS[show], size)
    env, like = make(3, factory), SerialEnv(3, factory)
    one, other = env.reset(), like.reset()
    for step in range(24):
        assert repr(told(one)) == repr(told(other))
        if step % 7 == 5:
            mask = torch.zeros(3, *size, 1, dtype=torch.bool)
            mask[step % 3] = True
            one, other = (each.reset(td.set("_reset", mask)) for each, td in ((env, one), (like, other)))
            continue
        if step == 11:
            one, other = env.reset(), like.reset()
            continue
        one, other = (each.rand_action(td) for each, td in ((env, one), (like, other)))
        if step % 5 == 3:
            for td in (one, other):
                td["_step"] = (
                    torch.tensor([True, False, True]).reshape(3, *([1] * len(size))).expand(3, *size).clone()
                )
        (one, root), (other, like_root) = env.step_and_maybe_reset(one), like.step_and_maybe_reset(other)
        assert repr(told(one["next"])) == repr(told(other["next"]))
        one, other = root, like_root
    like.close()


@pytest.mark.parametrize("show", ["dict", "arrays", "mixed"])
def test_what_a_caller_does_to_a_value_stays_with_it(make, show):
    env = make(2, functools.partial(toys_made.Told, SHOWS[show]))
    td = env.reset()
    for n in range(1, 7):
        td = env.step(env.rand_action(td))["next"]
        for value in told(td):
            assert repr(value) == repr(SHOWS[show](n))
            if isinstance(value, dict):
                value["deep"].append("mine")
            elif isinstance(value, list):
                value.clear()
            elif isinstance(value, np.ndarray):
                value[...] = -1


def test_an_environment_sees_the_text_that_it_is_given(make):
    """What a caller puts into a root reaches the environment; what it leaves there arrives too, though it is not sent."""
    env = make(2, functools.partial(toys_made.Told, SHOWS["constant"]), use_buffers=False)
    td = env.rand_action(env.reset())
    env.step(td)
    assert list(env.handed()) == ["the mission"] * 2
    td["said"] = "another"
    env.step(td)
    assert list(env.handed()) == ["another"] * 2
    td = env.rand_action(env.reset())
    env.step(td)
    assert list(env.handed()) == ["the mission"] * 2


def long_text(n):
    return "word " * 20_000


@pytest.mark.parametrize(
    ("more", "size"),
    [({}, ()), ({"use_buffers": False}, ()), ({}, (2,))],
    ids=["block", "pipes", "rows"],
)
def test_a_constant_is_sent_once(more, size):
    factory = functools.partial(toys_made.Told, long_text, size)
    with ParallelEnv(2, factory, num_processes=2, mp_start_method="fork", **more) as env:
        td = env.step(env.rand_action(env.reset()))
        before = env.effort
        for _ in range(10):
            td = env.step(env.rand_action(td))
            assert told(td["next"])[1] in (long_text(0), [long_text(0)] * 2)
        after = env.effort
    moved = [
        late - early
        for name in ("sent_bytes", "received_bytes")
        for late, early in zip(getattr(after, name), getattr(before, name), strict=True)
    ]
    assert max(moved) < 50_000
    if not more and not size:
        assert moved == [0] * 4, "nothing at all goes over the sockets"


def test_texts_in_blocks_of_several_frames():
    """Every cell of every block holds what was last stepped there, in whatever order blocks are used."""
    kwargs = {"num_envs": 3, "num_steps": 4, "num_blocks": 2, "kwargs": {"k": 3}}
    with (
        open_envs(toys.Text, num_processes=0, **kwargs) as like,
        open_envs(toys.Text, num_processes=2, start_method="fork", **kwargs) as envs,
    ):
        for each in (like, envs):
            each.reset()
        for block in (0, 1, 1, 0, 0, 1, 0):
            for each in (like, envs):
                each.begin(block)
                each.blocks[block].arrays["action",][...] = 0
                each.step_range(block, 0, 2)
                each.step_range(block, 2, 4)
            for key in like.layout.objects:
                found, wanted = envs.blocks[block].arrays[key], like.blocks[block].arrays[key]
                assert found.tolist() == wanted.tolist()
            if block:
                for each in (like, envs):
                    each.cut(block, 3)
            assert envs.carry.arrays["observation",].tolist() == like.carry.arrays["observation",].tolist()


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "pipes"])
def test_a_new_process_is_told_and_tells_everything(more):
    factory = functools.partial(toys_made.Told, SHOWS["constant"])
    more = {**more, "num_processes": 2, "mp_start_method": "fork", "on_env_error": "restart"}
    with ParallelEnv(4, factory, **more) as env:
        td = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
        for _ in range(3):
            os.kill(env.vector.pids[1], 9)
            stepped, td = env.step_and_maybe_reset(env.rand_action(td))
            assert told(stepped["next"]) == ["the mission"] * 4
            assert told(td) == ["the mission"] * 4
            assert stepped["next", "valid"].squeeze(-1).tolist() == [True, True, False, False]
            stepped, td = env.step_and_maybe_reset(env.rand_action(td))
            assert told(stepped["next"]) == ["the mission"] * 4
            assert stepped["next", "valid"].all()


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "pipes"])
def test_texts_of_environments_that_are_sent_one_by_one(more):
    factory = functools.partial(toys_made.Told, SHOWS["kinds"])
    with ParallelEnv(3, factory, num_processes=2, mp_start_method="fork", **more) as env:
        td, steps = env.reset(), [0] * 3
        rows = {index: td[index : index + 1] for index in range(3)}
        for round_ in range(30):
            chosen = [index for index in range(3) if (round_ + index) % 3 or round_ % 4 == 0]
            for index in chosen:
                env.send(rows[index].clone().set("action", torch.zeros(1, 1)), [index])
            left = set(chosen)
            while left:
                ready = env.recv()
                for place, index in enumerate(ready.indices):
                    left.discard(index)
                    steps[index] += 1
                    assert repr(told(ready.stepped["next"])[place]) == repr(SHOWS["kinds"](steps[index]))
                    rows[index] = ready.root[place : place + 1]


class Own:
    """A class of the caller's own, which goes by value."""

    def __init__(self, n):
        self.n = n


UNSENDABLE = {
    "generator": lambda n: (each for each in "ab") if n == 2 else n,
    "lock": lambda n: __import__("threading").Lock() if n == 2 else n,
}


@pytest.mark.parametrize("what", UNSENDABLE)
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "pipes"])
def test_a_value_that_cannot_be_sent_is_named(what, more):
    factories = [
        functools.partial(toys_made.Told, SHOWS["constant"]),
        functools.partial(toys_made.Told, UNSENDABLE[what]),
    ]
    env = ParallelEnv(2, factories, num_processes=1, mp_start_method="fork", **more)
    td = env.step(env.rand_action(env.reset()))
    with pytest.raises(
        RuntimeError,
        match=rf"environment 1 .*during step.*{what}.*cannot be (sent|copied)|during step.*cannot be (sent|copied).*{what}",
    ):
        env.step(env.rand_action(td))
    env.close(raise_if_closed=False)


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "pipes"])
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_values_of_a_class_that_cannot_be_imported(more, method):
    kind = type("Local", (), {"__module__": "__main__", "__init__": lambda self, n: setattr(self, "n", n)})
    with ParallelEnv(
        2, functools.partial(toys_made.Told, kind), num_processes=1, mp_start_method=method, **more
    ) as env:
        td = env.step(env.rand_action(env.reset()))
        assert [each.n for each in told(td["next"])] == [1, 1]
