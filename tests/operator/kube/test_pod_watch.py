"""The watch of pods: what is followed on from, when it lists anew, and what it never loses."""

from __future__ import annotations

import pytest
from fake_api import Fault

from rollout_operator.cluster import JobKey
from rollout_operator.kube import api_client
from rollout_operator.kube.caches import Deletions, JobCache, PodCache, owner_of, version_of
from rollout_operator.kube.pod_watch import PodWatch

OWNER = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "name": "a",
    "uid": "job-1",
    "controller": True,
}


def pod(index=0, *, owner=OWNER, **labels):
    """A worker pod's manifest."""
    ours = {
        "rolloutjob.dev/job-uid": "job-1",
        "rolloutjob.dev/worker-group": "w",
        "rolloutjob.dev/worker-index": str(index),
        "rolloutjob.dev/attempt": "0",
    }
    metadata = {"namespace": "rl", "name": f"a-w-{index}-0", "labels": ours | labels}
    if owner:
        metadata["ownerReferences"] = [owner]
    return {"metadata": metadata, "spec": {"containers": [{"name": "worker"}]}}


@pytest.fixture
async def watch(server, api, running, until):
    """A watch that has listed."""
    changed = []
    found = PodWatch(api, PodCache(), changed.append, namespace="rl")
    found.changed = changed
    found.cache = found._cache
    found.start = lambda: running(found.run())
    found.start()
    await found.synced.wait()
    await until(lambda: server.watchers, "the watch")
    return found


def names(watch):
    return sorted(view.name for view in watch.cache.of_job("job-1"))


async def test_it_lists_and_follows(server, watch, until):
    server.create("pods", pod(1))
    await until(lambda: names(watch) == ["a-w-1-0"])
    server.run_pods()
    await until(lambda: watch.cache.of_job("job-1")[0].ready)
    server.remove("pods", "rl", "a-w-1-0")
    await until(lambda: names(watch) == [])

    assert set(watch.changed) == {JobKey("rl", "a")}


async def test_only_our_pods_are_asked_for(server, watch):
    assert all("labelSelector=rolloutjob.dev" in path.replace("%2F", "/") for _, path in server.calls)


async def test_a_clean_end_is_followed_on_without_a_list(server, watch, until):
    server.create("pods", pod(1))
    await until(lambda: names(watch) == ["a-w-1-0"])
    ended = set(server.watchers)
    server.end_watches()
    await until(lambda: not ended & server.watchers)
    server.create("pods", pod(2))
    await until(lambda: names(watch) == ["a-w-1-0", "a-w-2-0"])

    assert server.count("GET", r"/pods\?(?!.*watch)") == 1


async def test_a_dropped_connection_is_followed_on(server, watch, until):
    for number in range(5):
        server.drop_watches()
        server.create("pods", pod(number))
        await until(lambda number=number: len(names(watch)) == number + 1)

    assert server.count("GET", r"/pods\?(?!.*watch)") == 1


async def test_too_far_behind_lists_anew_and_drops_what_is_gone(server, watch, until):
    server.create("pods", pod(1))
    server.create("pods", pod(2))
    await until(lambda: len(names(watch)) == 2)
    server.is_silent = True
    server.remove("pods", "rl", "a-w-1-0")
    server.create("pods", pod(3))
    server.compact()
    watch.changed.clear()
    server.is_silent = False
    server.drop_watches()

    await until(lambda: names(watch) == ["a-w-2-0", "a-w-3-0"])
    assert JobKey("rl", "a") in watch.changed


async def test_an_expired_watch_in_the_stream(server, watch, until):
    await server.say(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}')
    server.create("pods", pod(1))

    await until(lambda: names(watch) == ["a-w-1-0"])
    assert server.count("GET", r"/pods\?(?!.*watch)") == 2


@pytest.mark.parametrize("line", [b"etcdserver: no leader", b"[1]", b'{"type": "ADDED"}'])
async def test_a_line_that_is_no_event(server, watch, until, line):
    await server.say(line)
    server.create("pods", pod(1))

    await until(lambda: names(watch) == ["a-w-1-0"])


async def test_bookmarks_keep_it_young_and_move_it_on(server, watch, until):
    watch._heard -= 100
    server.version += 50
    await server.bookmark()
    await until(lambda: watch.age_s < 50)
    server.oldest = server.version
    server.drop_watches()
    server.create("pods", pod(1))

    await until(lambda: names(watch) == ["a-w-1-0"])
    assert server.count("GET", r"/pods\?(?!.*watch)") == 1


async def test_a_connection_that_is_dead_is_left(server, api, running, until, monkeypatch):
    """Nothing comes over it any more, and nobody says so: a new one goes on from the last version that was seen."""
    monkeypatch.setattr(api_client, "WATCH_SILENCE_S", 0.4)
    watch = PodWatch(api, PodCache(), lambda key: None, namespace="rl")
    running(watch.run())
    await until(lambda: server.watchers, "the watch")
    server.is_silent = True
    server.create("pods", pod(1))
    dead = set(server.watchers)
    await until(lambda: server.watchers - dead, "another connection")
    server.is_silent = False
    await until(lambda: [v.name for v in watch._cache.of_job("job-1")] == ["a-w-1-0"], "the pod")
    assert server.count("GET", r"/pods\?(?!.*watch)") == 1


async def test_a_server_that_cannot_list_is_asked_again(server, api, running, until):
    server.faults.append(Fault("GET", "/pods", 403, {"message": "not yet"}, times=2))
    watch = PodWatch(api, PodCache(), lambda key: None, namespace="rl")
    running(watch.run())

    await until(watch.synced.is_set, "the list")


def stored(index=0, *, version, uid="u", **more):
    document = pod(index, **more)
    document["metadata"] |= {
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return document


class TestPodCache:
    """What is held, whatever order things come in."""

    def test_an_older_version_changes_nothing(self):
        cache = PodCache()
        cache.put(stored(version=7))
        older = stored(version=5)
        older["status"] = {"phase": "Running"}
        cache.put(older)

        assert [view.phase for view in cache] == ["Pending"]

    def test_what_was_deleted_does_not_come_back(self):
        cache = PodCache()
        cache.put(stored(version=5))
        cache.remove("u")
        cache.put(stored(version=9))

        assert list(cache) == []
        assert cache.of_job("job-1") == []

    def test_a_pod_made_after_the_list_stays(self):
        cache = PodCache()
        cache.put(stored(1, version=5, uid="old"))
        cache.put(stored(2, version=12, uid="new"))

        assert cache.keep_only([], namespace="rl", version=10) == [JobKey("rl", "a")]
        assert [view.uid for view in cache] == ["new"]

    def test_another_namespace_is_not_touched(self):
        cache = PodCache()
        cache.put(stored(version=5))

        assert cache.keep_only([], namespace="other", version=10) == []
        assert len(cache) == 1

    @pytest.mark.parametrize(
        "document",
        [
            pytest.param(stored(version=1, owner=None), id="nobody's"),
            pytest.param(stored(version=1, owner={**OWNER, "kind": "Job"}), id="another kind's"),
            pytest.param(stored(version=1, owner={**OWNER, "controller": False}), id="not controlled"),
            pytest.param(stored(version=1, **{"rolloutjob.dev/attempt": "x"}), id="labels that are none"),
        ],
    )
    def test_what_is_not_ours(self, document):
        cache = PodCache()

        assert cache.put(document) is None
        assert len(cache) == 0


def test_deletions_are_forgotten_in_order():
    deletions = Deletions(limit=2)
    for uid in ("a", "b", "b", "c"):
        deletions.add(uid)

    assert [uid in deletions for uid in ("a", "b", "c")] == [False, True, True]


def test_versions_and_owners():
    assert version_of({"resourceVersion": "12"}) == 12
    assert version_of({}) == 0
    assert owner_of({}) is None


class TestJobCache:
    """Jobs by name."""

    def job(self, version, uid="u"):
        metadata = {
            "namespace": "rl",
            "name": "a",
            "uid": uid,
            "resourceVersion": str(version),
            "managedFields": [1],
        }
        return {"metadata": metadata, "spec": {"n": version}}

    def test_the_newest_stays(self):
        cache = JobCache()
        for version in (5, 9, 7):
            key = cache.put(self.job(version))

        assert cache.get(key)["spec"] == {"n": 9}
        assert "managedFields" not in cache.get(key)["metadata"]
        assert (cache.version(key), len(cache), key in cache) == (("u", 9), 1, True)

    def test_a_late_deletion_leaves_the_successor(self):
        cache = JobCache()
        key = cache.put(self.job(5))
        cache.put(self.job(9, uid="second"))
        cache.remove(key, "u")

        assert cache.version(key) == ("second", 9)
        cache.put(self.job(10, uid="u"))
        assert cache.version(key) == ("second", 9)
        cache.remove(key, "second")
        assert cache.keys() == []
