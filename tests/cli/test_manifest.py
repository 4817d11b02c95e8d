from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.errors import UsageError
from rollout_cli.manifest import ManifestError, load_job, parse_change, read_document, with_value


def test_a_manifest_becomes_a_job(manifest, write_manifest):
    job = load_job(write_manifest(manifest))

    assert (job.metadata.name, job.spec.collector.total_frames) == ("tiny", 60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no YAML document", id="empty"),
        pytest.param("# nothing\n", "no YAML document", id="only a comment"),
        pytest.param("a: [1, 2\n", "not YAML", id="syntax"),
        pytest.param("\tkind: x\n", "not YAML", id="tab"),
        pytest.param("a: 1\n---\nb: 2\n", "2 YAML documents", id="two documents"),
        pytest.param(
            "a: 1\nb:\n  c: 1\n  c: 2\n", "b.c: written twice: in line 3 and in line 4", id="doubled key"
        ),
        pytest.param("on: 1\n", "line 1 is read as bool", id="a key that is no text"),
        pytest.param("? [a]\n: 1\n", "line 1 is read as seq", id="a key that is a list"),
        pytest.param("a: &a [*a]\n", "an alias that contains itself", id="circle"),
        pytest.param("a: !!python/object:os.system x\n", "not YAML", id="a tag that would run code"),
        pytest.param("[" * 5000, "nested too deeply", id="deep"),
        pytest.param("[" * 300 + "]" * 300, "", id="deep but whole"),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(text, message, write_manifest):
    with pytest.raises(ManifestError) as error:
        load_job(write_manifest(text))

    assert message in str(error.value)


def test_aliases_that_multiply_are_refused_before_they_fill_memory(write_manifest):
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" if i else "a0: &a0 [x]" for i in range(12)]

    with pytest.raises(ManifestError, match="more than 100000 values"):
        read_document(write_manifest("\n".join(levels)))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"a: \xff\n")

    with pytest.raises(ManifestError, match="byte 3"):
        read_document(path)


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(name, tmp_path):
    with pytest.raises(UsageError, match="cannot read the manifest"):
        read_document(tmp_path / name)


def test_every_fault_is_listed_with_its_line(manifest, write_manifest):
    manifest["spec"]["collector"]["framesPerBatch"] = 0
    manifest["spec"]["env"]["colour"] = "red"
    path = write_manifest(manifest)
    lines = path.read_text().splitlines()

    with pytest.raises(ManifestError) as error:
        load_job(path)

    text = str(error.value)
    for where, word in (("spec.collector.framesPerBatch", "framesPerBatch"), ("spec.env.colour", "colour")):
        number = next(i for i, line in enumerate(lines, start=1) if word in line)
        assert f"{path}:{number}: {where}: " in text
    assert len(error.value.faults) == 2


def test_dates_and_octal_like_text_stay_what_the_api_server_makes_of_them(manifest, write_manifest):
    manifest["spec"]["env"]["kwargs"] = {"day": "PLACEHOLDER"}
    path = write_manifest(yaml.safe_dump(manifest).replace("PLACEHOLDER", "2026-01-01"))

    assert load_job(path).spec.env.kwargs == {"day": "2026-01-01"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("spec.seed=7", ("spec.seed", 7), id="number"),
        pytest.param("spec.env.kwargs={a: [1]}", ("spec.env.kwargs", {"a": [1]}), id="mapping"),
        pytest.param("metadata.name=a=b", ("metadata.name", "a=b"), id="equals sign in the value"),
        pytest.param("spec.seed=", ("spec.seed", None), id="nothing"),
    ],
)
def test_changes_are_paths_and_yaml(text, expected):
    assert parse_change(text) == expected


@pytest.mark.parametrize("text", ["spec.seed", "=7", "spec.seed=[", ""])
def test_a_change_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--set"):
        parse_change(text)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("a.b", {"a": {"b": 9}, "l": [{"n": 1}, 2]}, id="made"),
        pytest.param("l[0].n", {"a": None, "l": [{"n": 9}, 2]}, id="in a list"),
        pytest.param("l[1]", {"a": None, "l": [{"n": 1}, 9]}, id="an element"),
    ],
)
def test_a_value_is_set_in_a_copy(path, expected):
    data = {"a": None, "l": [{"n": 1}, 2]}

    assert with_value(data, path, 9) == expected
    assert data == {"a": None, "l": [{"n": 1}, 2]}


@pytest.mark.parametrize("path", ["l[2]", "l.x", "l[0].n.x", "", "a..[", "l[x]"])
def test_a_path_that_leads_nowhere_is_refused(path):
    with pytest.raises(UsageError, match="--set"):
        with_value({"l": [{"n": 1}, 2]}, path, 9)


@given(st.text())
def test_any_text_is_a_manifest_or_a_manifest_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "job.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")

    with pytest.raises(ManifestError):
        load_job(path)
