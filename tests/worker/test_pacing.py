"""What a worker does next: one row per rule, in order of precedence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollout_contract.messages import Reservation, ReserveStatus, WorkerState
from rollout_worker.pacing import Collect, Fenced, Load, Move, Reseed, Rules, Standing, Stop, Wait, next_move

GRANTED = Reservation(
    status=ReserveStatus.GRANTED,
    granted=64,
    random=0,
    newest_version=0,
    seed=7,
    seed_epoch=0,
    command_epoch=0,
    unacked_frames=0,
    own_unacked_batches=0,
)
FIRST = Standing(sequence=1, loaded_version=0, rejected_version=0, seed_epoch=0, has_open_trajectories=False)
FREE = Rules(max_staleness=None, is_strict=False, waits_for_weights=False)
STRICT = replace(FREE, max_staleness=1, is_strict=True)
WAITING = replace(FREE, waits_for_weights=True)


@pytest.mark.parametrize(
    ("news", "standing", "rules", "move"),
    [
        pytest.param({}, {}, FREE, Collect(64, 0), id="granted"),
        pytest.param({"granted": 3, "random": 2}, {}, FREE, Collect(3, 2), id="granted-the-rest"),
        pytest.param({"status": ReserveStatus.FENCED}, {}, FREE, Fenced(), id="fenced"),
        pytest.param({"status": ReserveStatus.FINISHED}, {}, FREE, Stop(), id="finished"),
        pytest.param(
            {"status": ReserveStatus.FINISHED, "seed_epoch": 1}, {}, FREE, Stop(), id="finished-before-reseed"
        ),
        pytest.param({"status": ReserveStatus.FULL}, {}, FREE, Wait(WorkerState.BACKPRESSURED), id="full"),
        pytest.param(
            {"status": ReserveStatus.WAIT}, {}, FREE, Wait(WorkerState.PAUSED), id="others-hold-the-rest"
        ),
        pytest.param({"seed_epoch": 1, "seed": 11}, {}, FREE, Reseed(11, 1), id="reseed"),
        pytest.param({"seed_epoch": 1, "newest_version": 3}, {}, FREE, Reseed(7, 1), id="reseed-before-load"),
        pytest.param(
            {"seed_epoch": 1},
            {"has_open_trajectories": True},
            FREE,
            Collect(64, 0),
            id="open-trajectories-end-in-one-more-batch",
        ),
        pytest.param({"newest_version": 3}, {}, FREE, Load(3), id="newer-version"),
        pytest.param({"newest_version": 3}, {"loaded_version": 3}, FREE, Collect(64, 0), id="newest-loaded"),
        pytest.param(
            {"newest_version": 3},
            {"rejected_version": 3},
            FREE,
            Collect(64, 0),
            id="rejected-not-tried-again",
        ),
        pytest.param(
            {"newest_version": 4}, {"rejected_version": 3}, FREE, Load(4), id="version-after-the-rejected"
        ),
        pytest.param({}, {}, WAITING, Wait(WorkerState.WAITING_FOR_WEIGHTS), id="wait-for-the-first-version"),
        pytest.param({"newest_version": 1}, {}, WAITING, Load(1), id="first-version-came"),
        pytest.param(
            {"own_unacked_batches": 1, "max_own_unacked": 1}, {}, FREE, Collect(64, 0), id="within-the-bound"
        ),
        pytest.param(
            {"own_unacked_batches": 2, "max_own_unacked": 1}, {}, FREE, Wait(WorkerState.PAUSED), id="paced"
        ),
        pytest.param({"own_unacked_batches": 2}, {}, FREE, Collect(64, 0), id="not-bounded"),
        pytest.param(
            {"own_unacked_batches": 2, "max_own_unacked": 1, "newest_version": 1},
            {},
            FREE,
            Load(1),
            id="load-while-paced",
        ),
        pytest.param({}, {"sequence": 2}, STRICT, Collect(64, 0), id="strict-version-0-makes-batch-2"),
        pytest.param(
            {},
            {"sequence": 3},
            STRICT,
            Wait(WorkerState.WAITING_FOR_WEIGHTS),
            id="strict-waits-for-version-1",
        ),
        pytest.param(
            {"newest_version": 2}, {"sequence": 3}, STRICT, Load(1), id="strict-loads-exactly-version-1"
        ),
        pytest.param(
            {"newest_version": 5, "own_unacked_batches": 9, "max_own_unacked": 1},
            {"sequence": 3, "loaded_version": 1},
            STRICT,
            Collect(64, 0),
            id="strict-looks-at-versions-only",
        ),
        pytest.param(
            {"newest_version": 5},
            {"sequence": 9},
            replace(STRICT, max_staleness=None),
            Collect(64, 0),
            id="strict-unbounded-is-version-0-for-ever",
        ),
    ],
)
def test_next_move(news: dict[str, int], standing: dict[str, int], rules: Rules, move: Move) -> None:
    assert next_move(replace(GRANTED, **news), replace(FIRST, **standing), rules) == move
