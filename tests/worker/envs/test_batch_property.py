"""Whatever the specs and whatever is done: every mode gives the same tensordicts."""

from __future__ import annotations

import functools
import os

import pytest
import torch
import toys_td
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDictBase, is_non_tensor

from rollout_worker.envs import ParallelEnv, SerialEnv

NUM_ENVS = 3
IS_SOAK = bool(os.environ.get("SOAK"))

DTYPES = [
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "text"),
]
NAMES = st.sampled_from(["a", "b", "c"])
LEAF = st.tuples(
    st.lists(NAMES, min_size=1, max_size=4).map(tuple),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)


def without_clashes(leaves):
    """Leaves of which none is a part of another's key."""
    kept = []
    for key, dtype, shape in leaves:
        taken = [other[: len(key)] == key or key[: len(other)] == other for other, _, _ in kept]
        if not any(taken):
            kept.append((key, dtype, shape))
    return tuple(kept)


TREES = st.lists(LEAF, min_size=1, max_size=4).map(without_clashes)
MASK = st.lists(st.booleans(), min_size=NUM_ENVS, max_size=NUM_ENVS)
ACTIONS = st.lists(st.integers(0, 2), min_size=NUM_ENVS, max_size=NUM_ENVS)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("reset some"), MASK),
        st.tuples(st.just("step"), ACTIONS),
        st.tuples(st.just("step some"), st.tuples(ACTIONS, MASK)),
        st.tuples(st.just("step and reset"), ACTIONS),
        st.tuples(st.just("step and reset some"), st.tuples(ACTIONS, MASK)),
        st.tuples(st.just("seed"), st.integers(0, 5)),
        st.tuples(st.just("close"), st.none()),
    ),
    min_size=1,
    max_size=8,
)


def act(td, actions, mask=None):
    td = td.exclude("next", "_step", "_reset")
    td["deep", "action"] = torch.tensor(actions)
    return td if mask is None else td.set("_step", torch.tensor(mask))


def record(make, operations):
    """All that a batch gives."""
    env, found = make(), []
    try:
        td = env.reset()
        for name, given_ in operations:
            if name == "reset":
                td = env.reset()
            elif name == "reset some":
                td = env.reset(td.exclude("next", "_step").set("_reset", torch.tensor(given_).unsqueeze(-1)))
            elif name in ("step", "step some"):
                stepped = env.step(act(td, given_) if name == "step" else act(td, *given_))
                found.append(stepped.clone())
                td = stepped["next"].exclude("reward")
            elif name in ("step and reset", "step and reset some"):
                given_td = act(td, given_) if name == "step and reset" else act(td, *given_)
                stepped, td = env.step_and_maybe_reset(given_td)
                found.append(stepped.clone())
            elif name == "seed":
                env.set_seed(given_)
            else:
                env.close(raise_if_closed=False)
                td = env.reset()
            found.append(td.clone())
    finally:
        env.close(raise_if_closed=False)
    return found


def same(one, other):
    assert one.batch_size == other.batch_size
    left, right = leaves_of(one), leaves_of(other)
    assert set(left) == set(right)
    for key, value in left.items():
        if not isinstance(value, torch.Tensor):
            assert value.tolist() == right[key].tolist(), key
            continue
        assert (value.dtype, value.shape) == (right[key].dtype, right[key].shape), key
        assert torch.equal(value, right[key]), key


def leaves_of(td):
    """Every entry, those that are no tensors too."""
    keys = td.keys(
        True, True, is_leaf=lambda kind: not issubclass(kind, TensorDictBase) or is_non_tensor(kind)
    )
    return {key: td.get(key) for key in keys}


@pytest.mark.timeout(1800 if IS_SOAK else 300)
@given(tree=TREES, team=st.booleans(), operations=OPERATIONS)
@settings(
    max_examples=100 if IS_SOAK else 8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@pytest.mark.row("E-106")
@pytest.mark.probe("P-06")
def test_every_mode_gives_the_same(tree, team, operations):
    factory = functools.partial(toys_td.Tree, tree, team)
    parallel = functools.partial(ParallelEnv, NUM_ENVS, factory, mp_start_method="fork")
    expected = record(functools.partial(SerialEnv, NUM_ENVS, factory), operations)
    for processes in (1, 2, 3):
        for uses_buffers in (None, False):
            make = functools.partial(parallel, num_processes=processes, use_buffers=uses_buffers)
            found = record(make, operations)
            assert len(found) == len(expected)
            for one, other in zip(expected, found, strict=True):
                same(one, other)
