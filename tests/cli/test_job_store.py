"""The run's file as the gateway's store: the protocol's promises."""

from __future__ import annotations

import asyncio

import pytest

from rollout_api.store import (
    AlreadyExists,
    Conflict,
    JobStore,
    LabelSelector,
    NotFound,
    StoreUnavailable,
    Unsupported,
)
from rollout_cli.local.job_file import JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_contract.spec import parse_manifest

EVERYTHING = LabelSelector.parse("")


@pytest.fixture
def file(tmp_path, manifest) -> JobFile:
    manifest["metadata"]["labels"] = {"team": "rl"}
    file = JobFile(tmp_path)
    file.create(parse_manifest(manifest).to_document())
    return file


@pytest.fixture
def store(file) -> LocalStore:
    return LocalStore(file)


def test_it_speaks_the_protocol(store):
    assert isinstance(store, JobStore)


async def test_the_job_is_found_with_its_identity(store):
    job = await store.get("default", "tiny")

    metadata = job.metadata
    assert (metadata.namespace, metadata.name, metadata.generation, metadata.resource_version) == (
        "default",
        "tiny",
        1,
        "1",
    )
    assert metadata.uid
    assert metadata.creation_timestamp
    await store.check()


@pytest.mark.parametrize(
    ("namespace", "selector", "found"),
    [
        pytest.param(None, "", 1, id="everywhere"),
        pytest.param("default", "team=rl", 1, id="its namespace and label"),
        pytest.param("other", "", 0, id="another namespace"),
        pytest.param(None, "team=ops", 0, id="another label"),
    ],
)
async def test_the_list_holds_the_job_where_it_is_meant(store, namespace, selector, found):
    page = await store.list(namespace, selector=LabelSelector.parse(selector), limit=5)

    assert (len(page.jobs), page.continue_token) == (found, "")


async def test_there_is_no_second_page(store):
    with pytest.raises(Unsupported):
        await store.list(None, selector=EVERYTHING, limit=5, continue_token="x")


@pytest.mark.parametrize(("namespace", "name"), [("default", "other"), ("other", "tiny")])
async def test_another_name_is_not_found(store, namespace, name):
    with pytest.raises(NotFound):
        await store.get(namespace, name)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_second_job_has_no_place(store, manifest, dry_run):
    manifest["metadata"]["name"] = "second"

    with pytest.raises(AlreadyExists):
        await store.create(parse_manifest(manifest), dry_run=dry_run)


async def test_a_patch_changes_the_spec_and_raises_the_generation(store):
    patched = await store.patch("default", "tiny", {"spec": {"suspend": True}}, resource_version="1")

    assert (patched.spec.suspend, patched.metadata.generation, patched.metadata.resource_version) == (
        True,
        2,
        "2",
    )
    assert (await store.get("default", "tiny")).spec.suspend


async def test_labels_alone_leave_the_generation(store):
    patched = await store.patch(
        "default", "tiny", {"metadata": {"labels": {"tier": "a"}}}, resource_version="1"
    )

    assert patched.metadata.labels == {"team": "rl", "tier": "a"}
    assert patched.metadata.generation == 1


async def test_a_dry_run_changes_nothing(store):
    shown = await store.patch(
        "default", "tiny", {"spec": {"suspend": True}}, resource_version="1", dry_run=True
    )

    assert shown.spec.suspend
    assert not (await store.get("default", "tiny")).spec.suspend


@pytest.mark.parametrize("dry_run", [True, False])
async def test_an_outdated_patch_is_a_conflict(store, dry_run):
    await store.patch("default", "tiny", {"spec": {"suspend": True}}, resource_version="1")

    with pytest.raises(Conflict):
        await store.patch(
            "default", "tiny", {"spec": {"suspend": False}}, resource_version="1", dry_run=dry_run
        )


async def test_deleting_takes_the_job_away(store):
    with pytest.raises(Conflict):
        await store.delete("default", "tiny", resource_version="9")
    assert (await store.delete("default", "tiny", resource_version="1")).metadata.name == "tiny"
    with pytest.raises(NotFound):
        await store.get("default", "tiny")
    assert (await store.list(None, selector=EVERYTHING, limit=5)).jobs == []


async def test_a_watch_tells_each_change_and_the_end(store, file):
    watch = store.watch("default", "tiny")
    first = await anext(watch)
    await store.patch("default", "tiny", {"spec": {"suspend": True}}, resource_version="1")
    second = await asyncio.wait_for(anext(watch), 60)
    await asyncio.to_thread(file.write_status, {"seed": 7})
    third = await asyncio.wait_for(anext(watch), 60)
    await store.delete("default", "tiny")
    last = await asyncio.wait_for(anext(watch), 60)

    assert (first.job.spec.suspend, second.job.spec.suspend, third.job.status.seed) == (False, True, 7)
    assert last.is_deleted
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_watch_that_is_left_is_closed(store, file):
    watch = store.watch("default", "tiny")
    await anext(watch)
    await watch.aclose()

    assert file._subscribers == []


async def test_a_file_that_cannot_be_read_is_unavailable_and_no_path_is_told(store, file):
    file.path.write_text("{")

    with pytest.raises(StoreUnavailable) as error:
        await store.check()
    assert str(file.path) not in str(error.value)
