"""The pure parts: merge patch, entity tags and ranges, digests, selectors, hosts, quantiles."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_api import bodies
from rollout_api.conditional import RangeNotSatisfiableError, range_of, version_to_match
from rollout_api.digests import content_digest_of, expected_sha256
from rollout_api.errors import TYPE_PREFIX, Kind, fault_bodies
from rollout_api.merge_patch import merged
from rollout_api.settings import ApiSettings
from rollout_api.store import LabelSelector
from rollout_api.views import curve_of, quantiles
from rollout_contract.errors import Fault
from rollout_stream.progress import EpisodeRecord

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7396
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps([target, patch])
    assert merged(target, patch) == result
    assert json.dumps([target, patch]) == before


@given(JSON_VALUES, JSON_VALUES)
def test_a_merge_patch_twice_is_a_merge_patch_once(target: Any, patch: Any) -> None:
    once = merged(target, patch)
    assert merged(once, patch) == once


@given(st.text(max_size=40), st.integers(0, 100))
def test_any_range_is_answered_or_refused(header: str, size: int) -> None:
    try:
        found = range_of(header, size)
    except RangeNotSatisfiableError:
        return
    assert found is None or 0 <= found.start < found.stop <= size


@given(st.integers(0, 99), st.integers(0, 200), st.integers(1, 100))
def test_a_range_inside_gives_what_it_names(first: int, last: int, size: int) -> None:
    if first >= size:
        with pytest.raises(RangeNotSatisfiableError):
            range_of(f"bytes={first}-{last}", size)
        return
    found = range_of(f"bytes={first}-{last}", size)
    data = bytes(size)
    expected = data[first : last + 1] if last >= first else None
    assert (found and len(data[found.start : found.stop])) == (expected and len(expected))


@pytest.mark.parametrize(
    ("header", "version"), [(None, None), ("*", None), ('"4"', 4), ("4", 4), (' "0" ', 0)]
)
def test_a_version_to_match(header: str | None, version: int | None) -> None:
    assert version_to_match(header, "version") == version


@pytest.mark.parametrize("header", ['W/"4"', '"4", "5"', "x", "", '"4', "-1", "1.0", "9" * 17, "٤"])
def test_no_version_to_match(header: str) -> None:
    with pytest.raises(ValueError, match="one version in quotes"):
        version_to_match(header, "version")


@given(st.binary(max_size=20))
def test_digests_of_both_headers(data: bytes) -> None:
    digest = hashlib.sha256(data).hexdigest()
    assert expected_sha256(content_digest_of(digest), digest.upper()) == digest
    assert expected_sha256(f"md5=:AA==:, {content_digest_of(digest)}", None) == digest
    assert expected_sha256(None, None) is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_digest_header_is_read_or_refused(one: str, two: str) -> None:
    try:
        found = expected_sha256(one, two)
    except ValueError:
        return
    assert found is None or len(found) == 64


@given(
    st.text(alphabet="ab=!,() in-./", max_size=20),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("ab")),
)
def test_any_selector_is_read_or_refused(text: str, labels: dict[str, str]) -> None:
    try:
        selector = LabelSelector.parse(text)
    except ValueError:
        return
    assert selector.matches(labels) in (True, False)


@given(st.text(max_size=100))
def test_any_yaml_is_read_or_refused(text: str) -> None:
    for parse in (bodies.parse_yaml, bodies.parse_json):
        with contextlib.suppress(ValueError):
            parse(text.encode("utf-8", "surrogatepass"))


@given(JSON_VALUES)
def test_json_that_is_yaml_means_the_same(value: Any) -> None:
    text = json.dumps(value).encode()
    assert bodies.parse_json(text) == value


@pytest.mark.parametrize(
    ("settings", "host", "is_accepted"),
    [
        (ApiSettings(), "127.0.0.1:1", True),
        (ApiSettings(), "127.9.9.9", True),
        (ApiSettings(), "rollout.example", False),
        (ApiSettings(allowed_hosts=("rollout.example",)), "Rollout.Example:80", True),
        (ApiSettings(host="0.0.0.0"), "anything.example", True),
        (ApiSettings(host="0.0.0.0", allowed_hosts=("a.example",)), "b.example", False),
        (ApiSettings(host="0.0.0.0", allowed_hosts=("a.example",)), "a.example", True),
    ],
)
def test_hosts(settings: ApiSettings, host: str, is_accepted: bool) -> None:
    assert settings.accepts_host(host) is is_accepted


def test_types_of_problems_are_stable_and_their_own() -> None:
    types = [kind.type for kind in Kind]
    assert len(set(types)) == len(types)
    assert all(type_.startswith(TYPE_PREFIX) for type_ in types)
    assert len(Kind) == len({kind.slug for kind in Kind})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**400, "x" * 1000, "\ud800", [1], {"a": 1}, None, b"x"]
)
def test_values_of_faults_can_be_sent(value: object) -> None:
    (body,) = fault_bodies([Fault("spec.seed", value, "is wrong")])
    json.dumps(body.model_dump(mode="json", exclude_none=True) if value != "\ud800" else {}, allow_nan=False)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_quantiles_are_in_order(values: list[float]) -> None:
    found = quantiles(values)
    assert found is not None
    ordered = [found.min, found.p10, found.p25, found.p50, found.p75, found.p90, found.max]
    assert ordered == sorted(ordered)
    assert found.min - 1e-6 <= found.mean <= found.max + 1e-6


@given(st.integers(0, 500), st.integers(1, 50))
def test_a_curve_holds_every_episode_once(count: int, points: int) -> None:
    episodes = [EpisodeRecord(float(i), 1, 0, i, "default/0") for i in range(count)]
    curve = curve_of(episodes, points)
    assert len(curve) <= points
    assert sum(point.episodes for point in curve) == count
