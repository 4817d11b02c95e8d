"""Quantities: exact values, refusals, and bytes for people."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_contract.quantities import format_bytes, parse, to_bytes, whole_cpus


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (0, 0),
        (8, 8),
        ("8", 8),
        ("+8", 8),
        ("-8", -8),
        ("4Ki", 4096),
        ("4Gi", 4 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1Ei", 2**60),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
        ("2k", 2000),
        ("3M", 3 * 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12E-2", Fraction(12, 100)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_values_are_exact(quantity, value):
    assert parse(quantity) == value


@pytest.mark.parametrize(
    "quantity",
    [
        "", " ", "4 Gi", " 4Gi", "4Gi ", "4gi", "4GiB", "4GB", "4K", "Gi", ".", "-", "1e", "1e999", "1e1000000000",
        "0x10", "1_000", "nan", "inf", "1,5Gi", "٣", "4Gi\n", "1" * 33, 1.5, True, None, [], {}, b"4", 2**64, 10**6000,
    ],
    ids=lambda quantity: repr(quantity)[:20] if not isinstance(quantity, int) or quantity < 2**70 else "huge",
)  # fmt: skip
def test_what_is_no_quantity_is_refused_in_words(quantity):
    with pytest.raises(ValueError, match="is no quantity: write a"):
        parse(quantity)


@pytest.mark.parametrize(
    ("quantity", "size"), [("310Mi", 310 * 2**20), (17, 17), ("0.5", 1), ("1.5", 2), ("100m", 1), (0, 0)]
)
def test_bytes_are_rounded_up(quantity, size):
    assert to_bytes(quantity) == size


def test_a_size_is_not_negative():
    with pytest.raises(ValueError, match="0 or more"):
        to_bytes("-1Gi")


@pytest.mark.parametrize(
    ("quantity", "cpus"), [("4", 4), (2, 2), ("1500m", 1), ("100m", 1), ("3.9", 3), (0, 1)]
)
def test_whole_processors(quantity, cpus):
    assert whole_cpus(quantity) == cpus


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0"), (1023, "1023"), (1024, "1Ki"), (310 * 2**20 + 5, "310Mi"), (2**70, "1024Ei")]
)
def test_bytes_for_people(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 2**63 - 1))
def test_what_is_written_is_read_back_within_one_unit(size):
    assert to_bytes(format_bytes(size)) <= size < 2 * to_bytes(format_bytes(size)) or size == 0


@given(st.integers(0, 2**60), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi"]))
def test_text_and_numbers_agree(number, suffix):
    assert parse(f"{number}{suffix}") == number * parse(f"1{suffix}")


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_value_error(text):
    try:
        value = parse(text)
    except ValueError:
        return
    assert isinstance(value, Fraction)
