"""What specs can do beyond single values: masks, open shapes, stacks of rows that differ, composites as mappings."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict

from rollout_worker.envs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    Stacked,
    StackedComposite,
    Unbounded,
    stack_specs,
)

T, F = True, False

# -- masks -------------------------------------------------------------------------------------------------------------

MASKED = [
    pytest.param(Categorical(4, mask=[F, T, F, T]), id="categorical"),
    pytest.param(OneHot(4, mask=[F, T, F, T]), id="one-hot"),
    pytest.param(Categorical(4, (2,), mask=[[F, T, F, T], [T, F, F, F]]), id="a mask per element"),
    pytest.param(
        OneHot(4, (2, 4), dtype=torch.int64, mask=[[F, T, F, T], [T, F, F, F]]), id="one-hot, per element"
    ),
]


@pytest.mark.parametrize("spec", MASKED)
def test_values_keep_to_the_mask(spec):
    drawn = spec.rand((50,), generator=torch.Generator().manual_seed(0))
    assert spec.is_in(drawn)
    number = spec.to_categorical(drawn) if isinstance(spec, OneHot) else drawn
    allowed = spec.mask.nonzero()[:, -1].unique().tolist()
    assert sorted(number.unique().tolist()) == allowed
    assert spec.is_in(spec.project(torch.full(spec.shape, 2).to(spec.dtype)))
    assert spec != spec.masked(None)
    assert spec == spec.clone() == spec.expand(3, *spec.shape)[1]


def test_the_nearest_that_a_mask_allows():
    spec = Categorical(5, (3,), mask=[T, F, F, T, F])
    assert spec.project(torch.tensor([1, 2, 9])).tolist() == [0, 3, 3]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        pytest.param([F, F], "allows no category", id="nothing"),
        pytest.param([T], "must end in n = 2", id="shape"),
    ],
)
def test_masks_that_cannot_be(mask, message):
    for make in (Categorical, OneHot):
        with pytest.raises(ValueError, match=message):
            make(2, mask=mask)


def test_from_numbers_to_vectors_and_back():
    numbers = Categorical(3, (2,), mask=[T, F, T])
    vectors = numbers.to_one_hot_spec()
    value = numbers.rand()
    assert vectors.is_in(numbers.to_one_hot(value))
    assert torch.equal(vectors.to_categorical(numbers.to_one_hot(value)), value)
    assert vectors.to_categorical_spec() == numbers
    several = MultiOneHot([2, 3])
    assert several.to_categorical(several.encode([1, 2])).tolist() == [1, 2]


# -- shapes ------------------------------------------------------------------------------------------------------------

OPEN = [
    pytest.param(Unbounded((-1, 2)), id="unbounded"),
    pytest.param(Bounded(0.0, 1.0, (-1, 2)), id="bounded"),
    pytest.param(Categorical(3, (-1,)), id="categorical"),
    pytest.param(Binary(shape=(-1, 2)), id="binary"),
    pytest.param(OneHot(3, (-1, 3)), id="one-hot"),
]


@pytest.mark.parametrize("spec", OPEN)
def test_open_dimensions_take_any_size(spec):
    assert spec.is_open
    assert spec.rand((5,)).shape == (5, 1, *spec.shape[1:])
    for size in (0, 1, 4):
        assert spec.is_in(torch.zeros(size, *spec.shape[1:], dtype=spec.dtype)) or isinstance(spec, OneHot)
    batch = spec.expand(3, *spec.shape)
    assert batch.shape == (3, *spec.shape)
    assert batch[1] == spec
    assert batch[:2].shape == (2, *spec.shape)


KINDS = [
    Unbounded((2, 3)),
    Bounded(torch.zeros(2, 3), torch.arange(6.0).reshape(2, 3), (2, 3)),
    Binary(3, (2, 3)),
    Categorical(4, (2, 3), mask=[T, T, F, T]),
    OneHot(3, (2, 3)),
    MultiCategorical([[2, 3, 4], [5, 6, 7]]),
    MultiOneHot([1, 2], (2, 3)),
    NonTensor((2, 3)),
    Composite(a=Unbounded((2, 3, 1)), b={"c": Categorical(2, (2, 3))}, shape=(2, 3)),
]


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: type(spec).__name__)
def test_dimensions_of_size_one_come_and_go(spec):
    for dim in (0, 1):
        wider = spec.unsqueeze(dim)
        assert wider.shape == (*spec.shape[:dim], 1, *spec.shape[dim:])
        assert wider.squeeze(dim) == spec
    with pytest.raises(ValueError, match="not of size 1"):
        spec.squeeze(0)
    with pytest.raises(IndexError, match="no dimension 5"):
        spec.unsqueeze(5)
    if not isinstance(spec, NonTensor):
        assert spec.is_in(spec.sample())
        assert spec.zeros().shape == spec.zero().shape


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: type(spec).__name__)
def test_equal_rows_stack_to_an_ordinary_spec(spec):
    for dim in (0, 1, -1):
        if dim == -1 and isinstance(spec, (OneHot, MultiOneHot, Composite)):
            continue  # categories stay last
        stacked = torch.stack([spec, spec.clone()], dim)
        assert type(stacked) is type(spec)
        at = dim if dim >= 0 else 2
        assert stacked.shape == (*spec.shape[:at], 2, *spec.shape[at:])
    assert torch.stack([spec, spec], 0)[1] == spec


# -- stacks ------------------------------------------------------------------------------------------------------------


def uneven() -> StackedComposite:
    rows = [
        Composite(obs=Unbounded((3,)), same=Categorical(2)),
        Composite(obs=Unbounded((2,)), same=Categorical(2), extra=Binary(1)),
    ]
    return stack_specs(rows)


def test_rows_that_differ():
    spec = uneven()
    assert isinstance(spec, StackedComposite)
    assert spec.shape == (2,)
    assert list(spec.keys()) == ["obs", "same"]
    assert spec["obs"].shape == (2, -1)
    assert spec["same"] == Categorical(2, (2,))
    assert spec[1]["extra"] == Binary(1)
    assert len(spec) == 2
    with pytest.raises(KeyError, match=r"not every row has 'extra'; read it of one row"):
        spec["extra"]
    assert "extra" not in spec
    assert spec[:1] == stack_specs([spec[0]])


def test_values_of_rows_that_differ():
    spec = uneven()
    value = spec.rand()
    assert isinstance(value, LazyStackedTensorDict)
    assert spec.is_in(value)
    assert spec.zero()[1]["extra"].tolist() == [0]
    assert spec.rand((4,)).batch_size == (4, 2)
    value[0]["same"].fill_(7)
    assert not spec.is_in(value)
    assert spec.is_in(spec.project(value))
    assert spec.is_in(spec.encode([{"obs": [1, 2, 3], "same": 1}, {"obs": [1, 2], "same": 0, "extra": [1]}]))
    assert not spec.is_in(value[:1])


def test_stacks_are_specs():
    spec = uneven()
    assert spec == uneven() == spec.clone()
    assert spec != stack_specs([spec[1], spec[0]])
    assert spec.to("cpu")[0]["obs"].device == torch.device("cpu")
    wide = spec.expand(5, 2)
    assert (wide.shape, wide.dim) == ((5, 2), 1)
    assert wide.rand().batch_size == (5, 2)
    assert "dim=0" in str(spec)
    spec.lock_()
    with pytest.raises(RuntimeError, match="locked"):
        spec[0]["more"] = Unbounded()
    with pytest.raises(RuntimeError, match="takes no key"):
        spec["more"] = Unbounded()
    with pytest.raises(RuntimeError, match="cannot be removed"):
        del spec["obs"]


def test_stacks_of_leaves():
    spec = torch.stack([Bounded(0.0, 1.0, (2,)), Bounded(0.0, 2.0, (2,))])
    assert isinstance(spec, Stacked)
    assert (spec.shape, spec.dtype) == ((2, 2), torch.float32)
    assert spec.rand().shape == (2, 2)
    assert spec.is_in(torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    assert not spec.is_in(torch.tensor([[2.0, 1.0], [2.0, 2.0]]))
    assert spec.project(torch.tensor([[9.0, 1.0], [9.0, 2.0]])).tolist() == [[1, 1], [2, 2]]
    ragged = stack_specs([Unbounded((2,)), Unbounded((3,), dtype=torch.int64)])
    assert (ragged.shape, ragged.dtype) == ((2, -1), None)
    assert [len(row) for row in ragged.rand()] == [2, 3]
    assert ragged.is_in(ragged.zero())
    assert [row.tolist() for row in ragged.encode([[1, 2], [1, 2, 3]])] == [[1, 2], [1, 2, 3]]
    assert ragged[1] == Unbounded((3,), dtype=torch.int64)


@pytest.mark.parametrize(
    ("specs", "error"),
    [
        pytest.param([], ValueError, id="nothing"),
        pytest.param([Unbounded((1,)), Composite()], TypeError, id="kinds"),
        pytest.param([Composite(shape=(1,)), Composite(shape=(2,))], ValueError, id="batch sizes"),
        pytest.param([Unbounded((1,)), Unbounded((1, 1))], ValueError, id="dimensions"),
    ],
)
def test_stacks_that_cannot_be(specs, error):
    with pytest.raises(error):
        stack_specs(specs)


# -- composites as mappings --------------------------------------------------------------------------------------------


def test_composites_as_mappings():
    spec = Composite(a=Unbounded((1,)), b={"c": Binary(2)})
    assert spec.set("d", Categorical(2)) is spec
    spec.update(Composite(b={"e": Unbounded()}, a=Binary(1)))
    assert list(spec.keys(True, True)) == ["a", ("b", "c"), ("b", "e"), "d"]
    assert spec["a"] == Binary(1)
    assert spec.pop(("b", "c")) == Binary(2)
    assert spec.pop("no such", None) is None
    with pytest.raises(KeyError, match="no spec for"):
        spec.pop("no such")
    assert list(spec.select("a", ("b", "e")).keys(True, True)) == ["a", ("b", "e")]
    assert list(spec.exclude("b").keys()) == ["a", "d"]
    assert set(spec.flatten()) == {("a",), ("b", "e"), ("d",)}
    assert spec.empty().is_empty()
    assert not spec.is_empty()
    assert Composite(a=Composite()).is_empty()
    assert Composite(shape=(3,)).batch_size == (3,)


def test_a_batch_of_another_size_is_not_in_a_composite():
    spec = Composite(a=Unbounded((3, 1)), shape=(3,))
    assert spec.is_in(spec.rand())
    assert not spec.is_in(Composite(a=Unbounded((2, 1)), shape=(2,)).rand())


# -- whatever it is, it holds what it draws ----------------------------------------------------------------------------

DTYPES = st.sampled_from(
    [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16]
)


@st.composite
def leaf(draw: st.DrawFn, batch: tuple[int, ...]) -> Spec:
    shape = (*batch, *draw(st.lists(st.integers(0, 3), max_size=2)))
    n = draw(st.integers(1, 5))
    return draw(
        st.sampled_from(
            [
                Unbounded(shape, dtype=draw(DTYPES)),
                Bounded(0, n, shape, dtype=draw(DTYPES)),
                Binary(shape=shape, dtype=torch.bool),
                Categorical(n, shape),
                OneHot(n, (*shape, n)),
                MultiCategorical(torch.full(shape, n), shape),
                NonTensor(batch),  # tensordict has no empty stack of what is no tensor
            ]
        )
    )


def trees(batch: tuple[int, ...]) -> st.SearchStrategy[Composite]:
    names = st.sampled_from(["a", "b", "c"])
    inner = st.dictionaries(names, leaf(batch), min_size=1, max_size=3)
    nested = st.recursive(
        inner, lambda below: st.dictionaries(names, below | leaf(batch), min_size=1, max_size=2), max_leaves=6
    )
    return nested.map(lambda entries: Composite(entries, shape=batch))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(), (2,)]).flatmap(trees), st.integers(0, 2**31))
def test_any_tree_holds_what_it_draws(spec, seed):
    value = spec.rand((3,), generator=torch.Generator().manual_seed(seed))
    assert spec.is_in(value)
    assert value.batch_size == (3, *spec.shape)
    assert spec.clone() == spec
    assert spec.expand(4, *spec.shape)[2] == spec
    assert spec.to("cpu").to(None) == spec
    assert stack_specs([spec, spec])[0] == spec
    assert set(spec.zero().keys(True, True)) == set(value.keys(True, True))
