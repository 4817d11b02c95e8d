"""Reserve, append, ack, release: what each answers, and what is counted."""

from __future__ import annotations

import pytest

from rollout_contract.errors import StateLost, StreamError, WriterFenced
from rollout_contract.messages import AppendStatus, EndKind, Heartbeat, ReserveStatus
from rollout_contract.names import Slot, WorkerId
from rollout_stream import JobSettings, StreamLimits


def read_all(rig, group="learner"):
    """Reads everything new and gives the ids."""
    rig.control.session.run(rig.control._calls.register(group))
    answer = rig.redis.execute_command("XREADGROUP", "GROUP", group, "c", "STREAMS", rig.keys.batches, ">")
    return [entry[0].decode() for entry in answer[0][1]] if answer else []


def ack(rig, ids, group="learner"):
    return rig.control.session.run(rig.control._calls.ack(group, ids))


def test_opening_twice_finds_the_job_as_it_has_become(rig, tools):
    rig.open(100, groups=("learner",))
    writer = rig.writer()
    tools.append(writer, 10)
    created = rig.control.open_job(JobSettings(uid=rig.job.uid, seed=99, total_frames=5))
    progress = rig.control.read_progress()
    assert (created, progress.counters.frames, progress.total_frames, progress.control.seed) == (
        False,
        10,
        100,
        7,
    )


def test_the_keys_of_another_job_are_not_taken_over(rig):
    rig.open(100)
    with pytest.raises(StreamError, match="another job"):
        rig.control.open_job(JobSettings(uid=rig.job.uid[:8] + "-other", seed=1))


def test_a_reservation_is_handed_back_until_it_is_appended(rig, tools):
    rig.open(25)
    writer = rig.writer()
    assert [writer.reserve(10).granted for _ in range(3)] == [10, 10, 10]
    assert rig.control.read_progress().reserved_frames == 10
    assert tools.append(writer, 10, want=10).next.granted == 10
    assert rig.writer(attempt=1).reserve(10).granted == 10, "the next attempt gets the open one"
    assert rig.control.read_progress().reserved_frames == 10


@pytest.mark.parametrize("total", [1, 7, 24, 25, 100], ids=lambda n: f"total {n}")
def test_the_total_is_met_exactly(rig, tools, total):
    rig.open(total)
    writers = [rig.writer(index) for index in range(3)]
    done: set[int] = set()
    while len(done) < 3:
        for number, writer in enumerate(writers):
            reservation = writer.reserve(10)
            if reservation.status == ReserveStatus.FINISHED:
                done.add(number)
            elif reservation.status == ReserveStatus.GRANTED:
                assert tools.append(writer, reservation.granted).status == AppendStatus.OK
    progress = rig.control.read_progress()
    assert (progress.counters.frames, progress.reserved_frames, progress.is_complete) == (total, 0, True)
    assert progress.control.ended == "finished"


def test_granted_nothing_means_wait_while_others_may_give_back(rig, tools):
    rig.open(10)
    one, two = rig.writer(0), rig.writer(1)
    assert one.reserve(10).granted == 10
    assert two.reserve(10).status == ReserveStatus.WAIT
    assert one.release() == 10
    assert two.reserve(10).granted == 10
    assert tools.append(two, 10).next.status == ReserveStatus.FINISHED
    assert rig.writer(0, attempt=1).reserve(10).status == ReserveStatus.FINISHED


def test_the_rest_of_a_grant_comes_with_the_next_batch(rig, tools):
    """The last grant is 11 frames of a worker with 4 environments: [4, 2], then [3, 1]."""
    rig.open(11)
    writer = rig.writer()
    assert writer.reserve(12).granted == 11
    first = tools.append(writer, 8, want=0)
    assert (first.next.status, first.next.granted) == (ReserveStatus.GRANTED, 3)
    assert tools.append(writer, 3, want=12).next.status == ReserveStatus.FINISHED


def test_the_rest_is_topped_up_where_more_is_wanted(rig, tools):
    rig.open(100)
    writer = rig.writer()
    writer.reserve(10)
    assert tools.append(writer, 4, want=10).next.granted == 10
    assert rig.control.read_progress().reserved_frames == 10


def test_random_frames_are_shared_out_exactly(rig, tools):
    rig.open(None, init_random_frames=25)
    one, two = rig.writer(0), rig.writer(1)
    assert [w.reserve(10).random for w in (one, two, one)] == [10, 10, 10]
    assert tools.append(one, 10, want=10).next.random == 5
    assert two.release() == 10
    assert rig.writer(1, attempt=1).reserve(10).random == 10, "a share that was given back is given out again"
    assert tools.append(one, 3, want=10).next.random == 2, "the random frames of a batch are its first ones"
    assert tools.append(one, 10, want=10).next.random == 0


def test_a_repeated_append_is_recognised_and_counted(rig, tools):
    rig.open(100)
    writer = rig.writer()
    batch = tools.frame_of(writer, 10)
    assert writer.append(*batch, want=10).status == AppendStatus.OK
    writer.next_sequence -= 1
    repeated = writer.append(*batch, want=10)
    assert (repeated.status, repeated.next.granted) == (AppendStatus.DUPLICATE, 10)
    counters = rig.counters()
    assert (counters.frames, counters.batches, counters.duplicates, rig.entries()) == (10, 1, 1, 1)
    assert rig.control.read_progress().reserved_frames == 10


def test_an_attempt_with_a_successor_writes_nothing_more(rig, tools):
    rig.open(100)
    old = rig.writer(attempt=0)
    tools.append(old, 10, want=10)
    new = rig.writer(attempt=1)
    assert new.next_sequence == 2
    assert tools.append(old, 10).status == AppendStatus.FENCED
    assert old.reserve(10).status == ReserveStatus.FENCED
    assert old.heartbeat(Heartbeat("cpu", 0, 0, "Collecting")).status == ReserveStatus.FENCED
    assert new.reserve(10).granted == 10
    assert (rig.counters().frames, rig.counters().fenced, rig.entries()) == (10, 1, 1)
    with pytest.raises(WriterFenced, match="attempt 1"):
        rig.writer(attempt=0)


def test_what_was_released_is_fenced(rig, tools):
    rig.open(20)
    gone = rig.writer(0)
    assert gone.reserve(20).granted == 20
    assert rig.control.release(gone.worker) == 20
    assert tools.append(gone, 20).status == AppendStatus.FENCED
    assert tools.append(rig.writer(1), 20).status == AppendStatus.OK
    assert rig.control.next_attempt(Slot("cpu", 0)) == 1


def test_a_zombie_cannot_release_its_successors_reservation(rig):
    rig.open(20)
    old = rig.writer(0)
    new = rig.writer(0, attempt=1)
    new.reserve(20)
    assert rig.control.release(old.worker) == 0
    assert new.reserve(20).granted == 20


def test_attempts_count_up_over_the_slots_whole_life(rig, tools):
    rig.open(None)
    assert rig.control.next_attempt(Slot("cpu", 0)) == 0
    rig.writer(0, attempt=0)
    tools.append(rig.writer(0, attempt=4), 1)
    assert rig.control.next_attempt(Slot("cpu", 0)) == 5
    assert rig.control.next_attempt(Slot("gpu", 0)) == 0


def test_an_attempt_that_was_announced_is_given(rig, tools):
    """Before its process exists: the number is never given again, and what came before it is fenced."""
    rig.open(None)
    old = rig.writer(0)
    tools.append(old, 3)
    workers = [WorkerId("cpu", 0, 1), WorkerId("cpu", 1, 0), WorkerId("gpu", 7, 4)]
    assert rig.control.announce(workers) == 3
    assert rig.control.announce(workers) == 0
    assert tools.append(old, 3).status == AppendStatus.FENCED
    progress = rig.control.read_progress()
    assert progress.attempts == {Slot("cpu", 0): 1, Slot("cpu", 1): 0, Slot("gpu", 7): 4}
    assert progress.sequences[Slot("cpu", 0)] == 1
    assert rig.control.announce([WorkerId("gpu", 7, 3)]) == 0
    assert rig.control.next_attempt(Slot("gpu", 7)) == 5
    assert tools.append(rig.writer(0, attempt=1), 2).status == AppendStatus.OK


def test_more_frames_than_the_budget_has_are_an_error_and_leave_nothing(rig, tools):
    rig.open(10)
    writer = rig.writer()
    writer.reserve(4)
    with pytest.raises(StreamError, match="OVERBUDGET 11 frames where 4 are reserved and 6 are left"):
        tools.append(writer, 11)
    assert (rig.entries(), rig.counters().frames) == (0, 0)
    assert tools.append(writer, 10).status == AppendStatus.OK


def test_a_frame_of_another_writer_is_refused_before_it_is_sent(rig, tools):
    rig.open(10)
    one, two = rig.writer(0), rig.writer(1)
    with pytest.raises(ValueError, match="cpu-1-0"):
        one.append(*tools.frame_of(two, 1))
    with pytest.raises(ValueError, match="sequence 5"):
        one.append(*tools.frame_of(one, 1, sequence=5))


def test_an_ended_job_takes_nothing(rig, tools):
    rig.open(None)
    writer = rig.writer()
    assert rig.control.finish(EndKind.FAILED, reason="BackoffLimitExceeded", message="worker 3 ended")
    assert tools.append(writer, 5).status == AppendStatus.FINISHED
    assert writer.reserve(5).status == ReserveStatus.FINISHED
    assert writer.heartbeat(Heartbeat("cpu", 0, 0, "Failed")).status == ReserveStatus.FINISHED
    assert rig.entries() == 0


def test_the_end_is_said_once(rig):
    rig.open(None)
    assert rig.control.finish(EndKind.SUSPENDED)
    assert not rig.control.finish(EndKind.SUSPENDED)
    assert rig.control.reopen()
    assert rig.control.finish(EndKind.FINISHED, reason="Completed")
    assert not rig.control.finish(EndKind.FAILED, reason="Late")
    assert not rig.control.reopen()
    assert rig.control.read_control().end.reason == "Completed"


# --- back-pressure


def test_writing_stops_at_the_high_watermark_and_resumes_at_the_low_one(rig, tools):
    rig.open(None, limits=StreamLimits(max_unacked_frames=100), groups=("learner",))
    writer = rig.writer()
    for _ in range(9):
        assert tools.append(writer, 10, want=10).next.status == ReserveStatus.GRANTED
    assert tools.append(writer, 10, want=10).next.status == ReserveStatus.FULL
    assert tools.append(writer, 10).status == AppendStatus.FULL
    assert (rig.counters().unacked_frames, rig.entries()) == (100, 10)
    ids = read_all(rig)
    ack(rig, ids[:1])
    assert writer.reserve(10).status == ReserveStatus.FULL, "90 is above 80 %"
    ack(rig, ids[1:2])
    assert writer.reserve(10).granted == 10
    assert tools.append(writer, 10, want=10).status == AppendStatus.OK
    assert writer.next_sequence == 12, "no sequence number is lost or repeated"


@pytest.mark.probe("P-33")
def test_a_pause_of_the_reader_holds_two_writers_and_loses_nothing(rig, tools):
    rig.open(None, limits=StreamLimits(max_unacked_frames=1000), groups=("learner",))
    writers = [rig.writer(0), rig.writer(1)]
    replies = [tools.append(writers[n % 2], 100, want=100).status for n in range(30)]
    assert replies.count(AppendStatus.OK) == 10
    assert rig.counters().unacked_frames <= 1200
    assert rig.control.read_progress().is_full
    before = [writer.next_sequence for writer in writers]
    ack(rig, read_all(rig))
    assert not rig.control.read_progress().is_full
    assert [tools.append(writer, 100).status for writer in writers] == [AppendStatus.OK] * 2
    assert [writer.next_sequence for writer in writers] == [n + 1 for n in before]


def test_bytes_are_a_watermark_too(rig, tools):
    rig.open(None, limits=StreamLimits(max_bytes=5000))
    writer = rig.writer()
    sizes = []
    while tools.append(writer, 100).status == AppendStatus.OK:
        sizes.append(rig.counters().unacked_bytes)
    assert sizes[-2] < 5000 <= sizes[-1]


def test_a_batch_above_the_watermark_fits_into_an_empty_stream(rig, tools):
    rig.open(None, limits=StreamLimits(max_unacked_frames=10, max_bytes=10))
    assert tools.append(rig.writer(), 1000).status == AppendStatus.OK


def test_limits_can_be_raised_while_writers_wait(rig, tools):
    rig.open(None, limits=StreamLimits(max_unacked_frames=10))
    writer = rig.writer()
    tools.append(writer, 10)
    assert writer.reserve(5).status == ReserveStatus.FULL
    rig.control.set_limits(StreamLimits(max_unacked_frames=1000))
    assert writer.reserve(5).granted == 5


def test_a_worker_is_told_how_many_of_its_batches_may_wait_for_an_ack(rig, tools):
    rig.open(None, limits=StreamLimits(max_staleness=3))
    writer = rig.writer()
    assert writer.reserve(5).max_own_unacked == 3
    rig.control.set_limits(StreamLimits(max_staleness=0))
    assert tools.append(writer, 5).next.max_own_unacked == 0
    for free in (StreamLimits(max_staleness=0, on_stale="Tag"), StreamLimits()):
        rig.control.set_limits(free)
        assert writer.reserve(5).max_own_unacked is None


def test_drop_newest_counts_what_it_drops_and_still_meets_the_total(rig, tools):
    rig.open(
        60,
        init_random_frames=60,
        limits=StreamLimits(max_unacked_frames=20, on_full="DropNewest"),
        groups=("learner",),
    )
    writer = rig.writer()
    statuses = [tools.append(writer, 10, want=10).status for _ in range(5)]
    assert statuses == [AppendStatus.OK] * 2 + [AppendStatus.DROPPED] * 3
    counters = rig.counters()
    assert (counters.frames, counters.dropped_frames, counters.dropped_batches, rig.entries()) == (
        20,
        30,
        3,
        2,
    )
    assert rig.control.read_progress().worker_counters[Slot("cpu", 0)].dropped_frames == 30
    assert writer.reserve(10).random == 10, "the random share of a dropped batch is made again"
    while rig.counters().frames < 60:
        ack(rig, read_all(rig))
        tools.append(writer, 10, want=10)
    assert rig.counters().frames == 60


def test_trim_acked_drops_only_what_no_group_waits_for(rig, tools):
    rig.open(None, limits=StreamLimits(max_unacked_frames=30, on_full="TrimAcked"))
    writer = rig.writer()
    for _ in range(10):
        assert tools.append(writer, 10, want=10).next.status == ReserveStatus.GRANTED
    counters = rig.counters()
    assert counters.unacked_frames <= 40
    assert counters.dropped_frames == 100 - counters.unacked_frames
    ids = read_all(rig)
    assert len(ids) * 10 == counters.unacked_frames
    assert tools.append(writer, 10).status in (AppendStatus.OK, AppendStatus.FULL)
    while tools.append(writer, 10).status == AppendStatus.OK:
        pass
    before = rig.counters()
    assert tools.append(writer, 10).status == AppendStatus.FULL, "a registered group holds every entry"
    assert rig.counters().dropped_frames == before.dropped_frames


def test_a_paused_job_grants_nothing_and_loses_nothing(rig, tools):
    rig.open(100)
    writer = rig.writer()
    writer.reserve(10)
    epoch = rig.control.command(paused=True)
    waiting = writer.reserve(10)
    assert (waiting.status, waiting.command_epoch) == (ReserveStatus.WAIT, epoch)
    assert tools.append(writer, 10, want=10).next.status == ReserveStatus.WAIT, (
        "the batch in hand is still taken"
    )
    assert rig.control.command(paused=True) == epoch, "saying it again changes nothing"
    assert rig.control.command(paused=False) == epoch + 1
    assert writer.reserve(10).granted == 10


# --- acks


def test_an_entry_goes_when_every_registered_group_has_acked_it(rig, tools):
    rig.open(None, groups=("a", "b"))
    writer = rig.writer()
    tools.append(writer, 10)
    (one,) = read_all(rig, "a")
    read_all(rig, "b")
    assert ack(rig, [one], "a").removed == 0
    assert ack(rig, [one], "a") == ack(rig, [one], "nobody"), "a second ack changes nothing"
    assert (rig.entries(), rig.counters().unacked_frames) == (1, 10)
    assert writer.reserve(1).own_unacked_batches == 1
    assert ack(rig, [one], "b").removed == 1
    assert (rig.entries(), rig.counters().unacked_frames, rig.counters().acked_frames) == (0, 0, 10)
    assert writer.reserve(1).own_unacked_batches == 0


def test_a_group_that_comes_later_gets_what_is_still_there(rig, tools):
    rig.open(None, groups=("a",))
    writer = rig.writer()
    tools.append(writer, 1)
    tools.append(writer, 1)
    first, second = read_all(rig, "a")
    ack(rig, [first], "a")
    assert read_all(rig, "late") == [second]
    assert ack(rig, [second], "a").removed == 0
    assert ack(rig, [second], "late").removed == 1


def test_a_group_that_is_removed_is_waited_for_no_longer(rig, tools):
    rig.open(None, groups=("a", "b"))
    writer = rig.writer()
    tools.append(writer, 3)
    tools.append(writer, 4)
    first, _ = read_all(rig, "a")
    ack(rig, [first], "a")
    assert rig.control.remove_group("b")
    assert not rig.control.remove_group("b")
    assert (rig.counters().unacked_frames, rig.entries()) == (4, 1)


@pytest.mark.probe("P-34")
def test_acked_entries_make_room_and_others_stay(rig, tools):
    rig.open(None, groups=("learner",), limits=StreamLimits(max_bytes=None))
    writer = rig.writer()
    for _ in range(400):
        tools.append(writer, 200)
    used = rig.redis.execute_command("MEMORY", "USAGE", rig.keys.batches, "SAMPLES", 0)
    ids = read_all(rig)
    for start in range(0, 100, 50):
        ack(rig, ids[start : start + 50])
    assert [e[0].decode() for e in rig.redis.execute_command("XRANGE", rig.keys.batches, "-", "+")] == ids[
        100:
    ]
    for start in range(100, 400, 50):
        ack(rig, ids[start : start + 50])
    assert rig.entries() == 0
    assert rig.redis.execute_command("MEMORY", "USAGE", rig.keys.batches, "SAMPLES", 0) < 0.05 * used
    assert rig.redis.execute_command("EXISTS", rig.keys.pending) == 0


# --- keys


def test_every_key_has_a_time_to_live_that_is_renewed(rig, tools):
    rig.open(None, ttl_s=1000, groups=("learner",))
    writer = rig.writer()
    tools.append(writer, 1, returns=[1.0])
    writer.heartbeat(Heartbeat("cpu", 0, 0, "Collecting"))
    keys = rig.redis.execute_command("KEYS", rig.keys.prefix.replace("{", "[{]").replace("}", "[}]") + "*")
    assert len(keys) == 9
    for key in keys:
        rig.redis.execute_command("PEXPIRE", key, 500_000)
    tools.append(writer, 1, returns=[1.0])
    assert {k: rig.redis.execute_command("PTTL", k) > 990_000 for k in keys} == dict.fromkeys(keys, True)
    rig.control.expire(300)
    everything = [*keys, f"rollout:current:{{{rig.job}}}"]
    assert {k: 0 < rig.redis.execute_command("PTTL", k) <= 300_000 for k in everything} == dict.fromkeys(
        everything, True
    )


def test_deleting_leaves_nothing(rig, tools):
    rig.open(None, groups=("learner",))
    tools.append(rig.writer(), 1, returns=[1.0])
    rig.control.delete()
    rig.control.delete()
    assert rig.redis.execute_command("KEYS", f"*{rig.job.name}*") == []


def test_a_successor_keeps_the_name_of_a_job_that_is_cleaned_up_late(make_rig):
    old = make_rig().open()
    key = f"rollout:current:{{{old.job}}}"
    old.redis.execute_command("SET", key, "ffffffff")
    old.control.touch()
    old.control.expire(60)
    old.control.delete()
    assert old.redis.execute_command("GET", key) == b"ffffffff"


@pytest.mark.parametrize("key", ["batches", "counters", "budget", "control"])
def test_a_lost_key_is_lost_state_and_is_never_made_again(rig, tools, key):
    rig.open(100, groups=("learner",))
    writer = rig.writer()
    tools.append(writer, 10)
    rig.redis.execute_command("DEL", getattr(rig.keys, key))
    for call in (
        lambda: tools.append(writer, 10),
        lambda: writer.reserve(10),
        rig.control.touch,
        rig.control.read_progress,
    ):
        with pytest.raises(StateLost):
            call()
    with pytest.raises(StateLost):
        rig.control.open_job(JobSettings(uid=rig.job.uid, seed=7))
    assert rig.redis.execute_command("EXISTS", getattr(rig.keys, key)) == 0
    assert rig.redis.execute_command("XLEN", rig.keys.batches) == (0 if key == "batches" else 1)


def test_progress_tells_everything_in_one_look(rig, tools):
    rig.open(1000, init_random_frames=5, groups=("learner",))
    writer = rig.writer(3, attempt=2, group="gpu")
    header, frame = tools.frame_of(writer, 10, policy_version=(3, 4))
    beat = Heartbeat("gpu", 3, 2, "Collecting", frames=10, policy_version=4, started=writer.server_time)
    writer.reserve(10)
    writer.append(header, frame, want=20, heartbeat=beat)
    tools.append(writer, 5, returns=[1.5, float("nan"), -2.0], policy_version=(4, 5))
    progress = rig.control.read_progress(episodes=2)
    (worker,) = progress.workers
    assert (worker.group, worker.index, worker.attempt, worker.frames) == ("gpu", 3, 2, 10)
    assert worker.started <= worker.seen <= progress.time
    assert progress.attempts == {Slot("gpu", 3): 2}
    assert progress.reservations == {Slot("gpu", 3): 15}
    assert progress.counters.episodes == 3
    assert progress.counters.policy_version == 5
    assert [e.value for e in progress.episodes] == [0.0, -2.0]
    assert progress.episodes[-1].frames == 15
    assert progress.groups[0].name == "learner"
    assert progress.worker_counters[Slot("gpu", 3)].unacked_batches == 2


def test_episodes_are_bounded(rig, tools):
    rig.open(None, limits=StreamLimits(max_episodes=50))
    writer = rig.writer()
    for _ in range(8):
        tools.append(writer, 1, returns=[float(n) for n in range(20)])
    assert rig.counters().episodes == 160
    assert len(rig.control.read_progress(episodes=1000).episodes) == 50


def test_flushed_scripts_are_loaded_again(rig, tools):
    rig.open(None)
    writer = rig.writer()
    rig.redis.execute_command("SCRIPT FLUSH")
    assert writer.reserve(5).granted == 5
    rig.redis.execute_command("SCRIPT FLUSH")
    assert tools.append(writer, 5).status == AppendStatus.OK


def test_the_cost_of_an_append_does_not_grow(rig, tools):
    """Counted in calls inside the server: the hundredth worker's thousandth batch costs what the first one's did."""
    rig.open(
        None,
        groups=("learner",),
        limits=StreamLimits(max_unacked_frames=None, max_bytes=None, max_episodes=10),
    )

    def calls_of_one_append(writer):
        rig.redis.execute_command("CONFIG RESETSTAT")
        tools.append(writer, 1, want=1, returns=[1.0])
        stats = rig.redis.execute_command("INFO commandstats").decode()
        return sum(
            int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if "calls=" in line
        )

    writer = rig.writer()
    tools.append(writer, 1, want=1, returns=[1.0])
    first = calls_of_one_append(writer)
    for index in range(1, 30):
        tools.append(rig.writer(index), 1, returns=[1.0])
    for _ in range(300):
        tools.append(writer, 1, want=1, returns=[1.0])
    assert calls_of_one_append(writer) <= first + 1


def test_seeds_are_changed_with_their_epoch(rig, tools):
    from rollout_contract.errors import EpochConflict

    rig.open(None)
    writer = rig.writer()
    assert rig.control.set_seed(11, expected_epoch=0).epoch == 1
    assert (writer.reserve(1).seed, writer.reserve(1).seed_epoch) == (11, 1)
    with pytest.raises(EpochConflict, match="the seed epoch is 1, not 0"):
        rig.control.set_seed(12, expected_epoch=0)
    assert rig.control.set_seed(2**63 - 1).epoch == 2
    assert rig.control.seed().seed == 2**63 - 1


@pytest.mark.probe("P-25")
def test_a_batch_of_the_old_epoch_is_cut_by_its_writer_before_it_is_taken(rig, tools):
    rig.open(None)
    writer = rig.writer()
    rig.control.set_seed(11)
    header, frame = tools.frame_of(writer, 5, seed_epoch=0)
    refused = writer.append(header, frame)
    assert (refused.status, refused.next.seed_epoch, rig.entries()) == (AppendStatus.RESEED, 1, 0)
    assert writer.append(header, frame, is_cut=True).status == AppendStatus.OK
    assert writer.append(*tools.frame_of(writer, 5, seed_epoch=1)).status == AppendStatus.OK


def test_layouts_are_agreed_on_before_the_first_batch(rig):
    from rollout_contract.errors import LayoutMismatch
    from rollout_contract.messages import Layout

    rig.open(None)
    held = Layout({"observation": {"dtype": "float32", "shape": [3]}})
    rig.writer(0).declare_layout("data", held)
    rig.writer(1).declare_layout("data", held)
    with pytest.raises(LayoutMismatch, match=r"observation: expected float32\[3\], found float64\[3\]"):
        rig.writer(2).declare_layout("data", Layout({"observation": {"dtype": "float64", "shape": [3]}}))
    assert rig.control.layout("data") == held
    assert rig.control.layout("weights") is None


def test_no_text_holds_the_password(make_server, make_rig):
    secret = "s3cr3t-probe-42"
    rig = make_rig(make_server(password=secret)).open(10)
    writer = rig.writer()
    stream = rig.stream()
    texts = [
        repr(x) + str(x)
        for x in (writer, stream, rig.control.session, rig.control.session.client, writer.session.address)
    ]
    assert secret not in "".join(texts)


def test_worker_ids_are_ordered_in_progress(rig):
    rig.open(None)
    for group, index in (("b", 1), ("a", 2), ("a", 0)):
        writer = rig.writer(index, group=group)
        writer.heartbeat(Heartbeat(group, index, 0, "Starting"))
    found = [WorkerId(w.group, w.index, w.attempt) for w in rig.control.read_progress().workers]
    assert found == sorted(found)
