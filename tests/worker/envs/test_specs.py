"""Spec classes: values, checks, repairs, shapes, and the way to and from plain descriptions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_worker.envs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)
from rollout_worker.envs.specs import description_of, leaf_spec_of, spec_of

LEAVES = [
    pytest.param(Unbounded((2,)), id="unbounded"),
    pytest.param(Unbounded((2,), dtype=torch.int64), id="unbounded int"),
    pytest.param(Unbounded((2,), dtype=torch.bfloat16), id="unbounded bfloat16"),
    pytest.param(Unbounded((), dtype=torch.complex64), id="complex"),
    pytest.param(Unbounded((0,)), id="empty"),
    pytest.param(Bounded(-1.0, 1.0, (3,)), id="bounded"),
    pytest.param(Bounded(torch.tensor([0.0, -torch.inf]), torch.tensor([torch.inf, 2.0])), id="half bounded"),
    pytest.param(Bounded(-3.4e38, 3.4e38, (4,)), id="bounded by the dtype"),
    pytest.param(Bounded(0, 255, (2, 2), dtype=torch.uint8), id="bytes"),
    pytest.param(Bounded(-(2**63), 2**63 - 1, (3,), dtype=torch.int64), id="all of int64"),
    pytest.param(Bounded(-1.0, 1.0, (2,), dtype=torch.bfloat16), id="bounded bfloat16"),
    pytest.param(Categorical(4), id="categorical"),
    pytest.param(Categorical(4, (2, 1), dtype=torch.int32), id="categorical with a shape"),
    pytest.param(OneHot(3), id="one-hot"),
    pytest.param(OneHot(3, (2, 3), dtype=torch.int64), id="one-hot with a shape"),
    pytest.param(MultiCategorical([2, 5]), id="multi-categorical"),
    pytest.param(MultiOneHot([2, 3]), id="multi-one-hot"),
    pytest.param(Binary(4), id="binary"),
    pytest.param(Binary(shape=(1,), dtype=torch.bool), id="flag"),
]


@pytest.mark.parametrize("spec", LEAVES)
@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_random_values_are_allowed(spec, lead):
    value = spec.rand(lead)
    assert value.shape == (*lead, *spec.shape)
    assert value.dtype == spec.dtype
    assert spec.is_in(value)
    assert spec.project(value) is value


@pytest.mark.parametrize("spec", LEAVES)
def test_zero_has_the_form_of_a_value(spec):
    zero = spec.zero((2,))
    assert (zero.shape, zero.dtype) == ((2, *spec.shape), spec.dtype)
    assert not zero.any()


@pytest.mark.parametrize("spec", LEAVES)
def test_expand_and_index_undo_each_other(spec):
    batch = spec.expand(3, *spec.shape)
    assert batch.shape == (3, *spec.shape)
    assert batch[1] == spec
    assert batch[:2] == spec.expand(2, *spec.shape)
    assert batch.is_in(batch.rand())
    assert batch != spec


@pytest.mark.parametrize("spec", LEAVES)
def test_descriptions_lose_nothing(spec):
    assert leaf_spec_of(description_of(spec)) == spec


@pytest.mark.parametrize("spec", LEAVES)
def test_a_moved_spec_is_the_same_but_for_its_device(spec):
    moved = spec.to("cpu")
    assert moved.device == torch.device("cpu")
    assert moved.to(None) == spec
    assert spec.clone() == spec


@pytest.mark.parametrize("spec", LEAVES)
def test_values_of_another_dtype_are_not_allowed(spec):
    assert not spec.is_in(torch.zeros(spec.shape, dtype=torch.float16))
    assert not spec.is_in(spec.zero().tolist())


@pytest.mark.parametrize("spec", [each for each in LEAVES if each.values[0].shape])
def test_values_of_another_shape_are_not_allowed(spec):
    value = torch.zeros(7, 7, dtype=spec.dtype)
    assert not spec.is_in(value)
    with pytest.raises(ValueError, match=r"\[7, 7\] is not in"):
        spec.assert_is_in(value)
    assert not spec.is_in(torch.zeros((), dtype=spec.dtype))


@pytest.mark.parametrize(
    ("spec", "value", "nearest"),
    [
        pytest.param(Bounded(-1.0, 1.0, (2,)), [-3.0, 0.5], [-1.0, 0.5], id="bounded"),
        pytest.param(Bounded(0, 9, (), dtype=torch.int64), 12, 9, id="bounded int"),
        pytest.param(Categorical(3, (2,)), [-1, 5], [0, 2], id="categorical"),
        pytest.param(MultiCategorical([2, 4]), [3, -2], [1, 0], id="multi-categorical"),
        pytest.param(OneHot(3), [True, True, False], [True, False, False], id="one-hot"),
        pytest.param(
            MultiOneHot([2, 2]), [True, True, False, True], [True, False, False, True], id="multi-one-hot"
        ),
        pytest.param(Binary(3), [0, 5, -1], [0, 1, 1], id="binary"),
    ],
)
def test_project_gives_the_nearest(spec, value, nearest):
    given_value = torch.tensor(value, dtype=spec.dtype)
    assert not spec.is_in(given_value)
    assert spec.project(given_value).tolist() == nearest
    assert spec.is_in(spec.project(given_value))


@pytest.mark.parametrize(
    ("spec", "value", "encoded"),
    [
        pytest.param(Unbounded((2,)), np.array([1.0, 2.0]), [1.0, 2.0], id="numpy"),
        pytest.param(Categorical(3), 2, 2, id="a number"),
        pytest.param(OneHot(3), 2, [False, False, True], id="one-hot of a number"),
        pytest.param(OneHot(3), [False, True, False], [False, True, False], id="one-hot of a vector"),
        pytest.param(MultiOneHot([2, 3]), [1, 0], [False, True, True, False, False], id="multi-one-hot"),
        pytest.param(Unbounded((1,)), 3.5, [3.5], id="a scalar for one element"),
    ],
)
def test_encode(spec, value, encoded):
    assert spec.encode(value).tolist() == encoded


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param(Categorical(3), 3, id="category"),
        pytest.param(OneHot(3), 3, id="one-hot"),
        pytest.param(Bounded(0.0, 1.0, ()), 1.5, id="bounds"),
    ],
)
def test_encode_refuses_what_is_not_allowed(spec, value):
    with pytest.raises(ValueError, match=r"no category|is not in"):
        spec.encode(value)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Bounded(1.0, 0.0, ()), id="low above high"),
        pytest.param(lambda: Categorical(0), id="no category"),
        pytest.param(lambda: OneHot(3, (2,)), id="one-hot shape"),
        pytest.param(lambda: MultiOneHot([2, 2], (3,)), id="multi-one-hot shape"),
        pytest.param(lambda: MultiCategorical([0]), id="multi-categorical"),
        pytest.param(lambda: Binary(3, (2,)), id="binary shape"),
        pytest.param(lambda: Unbounded((2,)).expand(2, 3), id="expand"),
        pytest.param(lambda: Composite(a=Unbounded((2,)), shape=(3,)), id="composite shape"),
    ],
)
def test_specs_that_make_no_sense_are_refused(make):
    with pytest.raises(ValueError, match=r"\w"):
        make()


def tree() -> Composite:
    return Composite(
        {"a": Unbounded((1,)), ("b", "c"): Categorical(3), "b": {"c": Categorical(3), "d": Binary(2)}}
    )


def test_nested_keys():
    spec = tree()
    assert list(spec.keys(True, True)) == ["a", ("b", "c"), ("b", "d")]
    assert spec["b", "c"] == spec["b"]["c"] == Categorical(3)
    assert ("b", "d") in spec
    assert ("b", "e") not in spec
    assert spec.get(("b", "e")) is None
    with pytest.raises(KeyError, match=r"'e'.*'d'"):
        spec["b", "e"]
    del spec["b", "c"]
    assert list(spec.keys(True, True)) == ["a", ("b", "d")]


def test_a_composite_is_a_spec():
    spec = tree()
    value = spec.rand((4,))
    assert value.batch_size == (4,)
    assert spec.is_in(value)
    assert spec.zero((2,))["b", "d"].shape == (2, 2)
    value["b", "c"] = torch.full((4,), 7)
    assert not spec.is_in(value)
    assert spec.is_in(spec.project(value))
    encoded = spec.encode({"a": [1.0], "b": {"c": 2, "d": [0, 1]}})
    assert encoded["b", "c"].item() == 2
    batch = spec.expand(6)
    assert batch.shape == (6,)
    assert batch["b", "c"].shape == (6,)
    assert batch[0] == spec
    assert spec == tree()
    assert spec != spec.expand(1)


def test_a_locked_composite_refuses_changes_at_any_depth():
    spec = tree().lock_()
    with pytest.raises(RuntimeError, match="locked"):
        spec["b", "x"] = Unbounded()
    with pytest.raises(RuntimeError, match="locked"):
        del spec["a"]
    spec.unlock_()["b", "x"] = Unbounded()
    assert ("b", "x") in spec


def test_a_generator_makes_random_values_repeatable():
    spec = Bounded(0.0, 1.0, (5,))
    drawn = [spec.rand(generator=torch.Generator().manual_seed(3)).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        pytest.param(
            spaces.Box(-1, 1, (2,), np.float64), Bounded(-1.0, 1.0, (2,), dtype=torch.float64), id="Box"
        ),
        pytest.param(spaces.Box(-np.inf, np.inf, (2,)), Unbounded((2,)), id="unbounded Box"),
        pytest.param(
            spaces.Box(0, 1, (2,), np.bool_), Binary(shape=(2,), dtype=torch.bool), id="Box of bool"
        ),
        pytest.param(spaces.Discrete(3, start=2), Categorical(3), id="Discrete"),
        pytest.param(spaces.MultiDiscrete([[2, 3]]), MultiCategorical([[2, 3]]), id="MultiDiscrete"),
        pytest.param(spaces.MultiBinary((2, 2)), Binary(shape=(2, 2)), id="MultiBinary"),
        pytest.param(spaces.Text(4), NonTensor(), id="Text"),
        pytest.param(spaces.Sequence(spaces.Discrete(2)), NonTensor(), id="Sequence"),
        pytest.param(spaces.Graph(spaces.Discrete(2), None), NonTensor(), id="Graph"),
        pytest.param(spaces.OneOf([spaces.Discrete(2)]), NonTensor(), id="OneOf"),
        pytest.param(spaces.Tuple([spaces.Discrete(2)]), Composite({"0": Categorical(2)}), id="Tuple"),
        pytest.param(
            spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2))),
            Composite({"a": {"b": Categorical(2)}}),
            id="Dict",
        ),
    ],
)
def test_specs_of_spaces(space, expected):
    assert spec_of(space) == expected


def test_a_space_without_a_spec_is_named():
    class Own(spaces.Space):
        pass

    with pytest.raises(TypeError, match="this leaf is Own, which has no spec"):
        spec_of(Own())


def test_texts_in_a_composite():
    value = Composite(text=NonTensor(example_data="t")).expand(3).rand()
    assert value["text"] == ["t", "t", "t"]


@given(
    low=st.integers(-1000, 1000),
    width=st.integers(0, 1000),
    dtype=st.sampled_from([torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]),
    shape=st.lists(st.integers(0, 3), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_bounded_values_stay_within_bounds(low, width, dtype, shape, seed):
    spec = Bounded(low, low + width, shape, dtype=dtype)
    value = spec.rand((7,), generator=torch.Generator().manual_seed(seed))
    assert spec.is_in(value)
    assert spec.is_in(spec.project(value + width + 1))
