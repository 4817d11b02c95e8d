"""The local run's store: compare-and-set, generations, atomic replacement, notification."""

from __future__ import annotations

import json
import os
import threading

import pytest

from rollout_cli.local.job_file import JobConflict, JobExists, JobFile, JobFileError, JobGone

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z


def manifest(**spec):
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "a", "labels": {"team": "rl"}},
        "spec": {"replicas": 2} | spec,
    }


@pytest.fixture
def store(tmp_path):
    return JobFile(tmp_path, clock=lambda: NOON)


def test_creating_fills_in_what_a_server_gives(store):
    document = store.create(manifest(), uid="u-1")
    assert document == manifest() | {
        "metadata": {
            "name": "a",
            "namespace": "default",
            "labels": {"team": "rl"},
            "uid": "u-1",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T12:00:00Z",
        }
    }
    assert store.read() == document


def test_a_second_job_is_refused_by_name(store):
    store.create(manifest())
    with pytest.raises(JobExists, match="default/a"):
        store.create(manifest())


def test_a_status_in_the_manifest_is_not_taken(store):
    assert "status" not in store.create(manifest() | {"status": {"state": "Complete"}})


def test_spec_and_status_do_not_change_each_other(store):
    store.create(manifest())
    store.write_status({"state": "Running"})
    after = store.update(spec={"replicas": 3})
    assert (after["spec"], after["status"]) == ({"replicas": 3}, {"state": "Running"})
    assert after["metadata"]["labels"] == {"team": "rl"}
    after = store.write_status({"state": "Degraded"})
    assert (after["spec"], after["status"]) == ({"replicas": 3}, {"state": "Degraded"})


@pytest.mark.parametrize(
    ("change", "generation", "version"),
    [
        pytest.param(lambda s: s.update(spec={"replicas": 3}), 2, "2", id="another spec"),
        pytest.param(lambda s: s.update(spec={"replicas": 2}), 1, "1", id="an equal spec"),
        pytest.param(
            lambda s: s.update(spec={"replicas": 2}, metadata={"labels": {"x": "y"}}),
            1,
            "2",
            id="labels only",
        ),
        pytest.param(lambda s: s.write_status({"state": "Running"}), 1, "2", id="status"),
    ],
)
def test_generation_moves_with_the_spec_and_version_with_everything(store, change, generation, version):
    store.create(manifest())
    metadata = change(store)["metadata"]
    assert (metadata["generation"], metadata["resourceVersion"]) == (generation, version)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda s, **kw: s.update(spec={}, **kw), id="update"),
        pytest.param(lambda s, **kw: s.write_status({"state": "Running"}, **kw), id="status"),
        pytest.param(lambda s, **kw: s.delete(**kw), id="delete"),
    ],
)
def test_writes_from_an_outdated_view_change_nothing(store, write):
    store.create(manifest(), uid="u-1")
    before = store.update(spec={"replicas": 5})
    with pytest.raises(JobConflict) as caught:
        write(store, expected="1")
    assert (caught.value.expected, caught.value.found) == ("1", "2")
    with pytest.raises(JobGone, match="u-0"):
        write(store, uid="u-0")
    assert store.read() == before
    write(store, expected="2", uid="u-1")


def test_a_deleted_job_is_gone_and_can_be_made_again(store):
    created = store.create(manifest())
    assert store.delete() == created
    for call in (store.read, store.delete, lambda: store.update(spec={}), lambda: store.write_status({})):
        with pytest.raises(JobGone):
            call()
    assert store.create(manifest())["metadata"]["uid"] != created["metadata"]["uid"]


def test_subscribers_hear_of_changes_until_they_leave(store):
    heard = []
    leave = store.subscribe(lambda: heard.append(1))
    store.create(manifest())
    store.update(spec={"replicas": 2})  # equal: no change
    store.write_status({"state": "Running"})
    assert len(heard) == 2
    leave()
    leave()
    store.delete()
    assert len(heard) == 2


def test_what_is_returned_is_not_what_is_kept(store):
    store.create(manifest())["spec"]["replicas"] = 99
    store.update(spec={"replicas": 3})["spec"]["replicas"] = 98
    assert store.read()["spec"] == {"replicas": 3}


def test_writers_of_many_threads_lose_nothing(store, tmp_path):
    store.create(manifest(count=0))

    def add(other):
        for _ in range(25):
            while True:
                read = other.read()
                try:
                    other.update(
                        spec=read["spec"] | {"count": read["spec"]["count"] + 1},
                        expected=read["metadata"]["resourceVersion"],
                    )
                    break
                except JobConflict:
                    continue

    threads = [threading.Thread(target=add, args=(JobFile(tmp_path),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read()["spec"]["count"] == 100
    assert sorted(os.listdir(tmp_path)) == ["job.json", "job.lock"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"metadata": {}}'], ids=["empty", "cut", "no object", "no version"]
)
def test_a_damaged_file_is_named(store, text):
    store.path.write_text(text)
    with pytest.raises(JobFileError, match=r"job\.json"):
        store.read()


def test_a_directory_that_is_gone_is_named(tmp_path):
    with pytest.raises(JobFileError, match="nowhere"):
        JobFile(tmp_path / "nowhere").create(manifest())


def test_a_document_that_is_no_json_leaves_the_old_one(store, tmp_path):
    before = store.create(manifest())
    with pytest.raises(TypeError):
        store.write_status({"state": object()})
    assert json.loads(store.path.read_text()) == before
    assert sorted(os.listdir(tmp_path)) == ["job.json", "job.lock"]
