"""The example with an environment of one's own: the environment, the policy, and the whole run."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_env"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Import one of the example's modules as a worker does."""
    names = ("reach", "policy")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # the checker has opinions on bounds; errors are what counts
def test_it_is_a_gymnasium_environment(load):
    check_env(load("reach").Reach(max_steps=5), skip_render_check=True)


def test_an_episode_ends_at_the_goal_or_at_the_limit(load):
    env = load("reach").Reach(max_steps=3)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, dtype=np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]

    env.reset(seed=0)
    env.position = env.goal.copy()
    assert env.step(np.zeros(2, dtype=np.float32))[2:4] == (True, False)


def test_observations_are_not_changed_afterwards(load):
    env = load("reach").Reach()
    first, _ = env.reset(seed=0)
    before = first["position"].copy()
    env.step(np.ones(2, dtype=np.float32))

    np.testing.assert_array_equal(first["position"], before)


def test_the_policy_walks_towards_the_goal(load):
    walker = load("policy").make_policy(None, None, noise=0.1)
    position, goal = torch.zeros(5, 2), torch.full((5, 2), 9.0)

    distribution = walker(position, goal)

    assert (distribution.batch_shape, distribution.event_shape) == ((5,), (2,))
    torch.testing.assert_close(distribution.mean, torch.full((5, 2), 0.7))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_whole_run_prints_every_batch(tmp_path):
    arguments = ["--learner", EXAMPLE / "reader.py", "--run-dir", "here"]
    run = subprocess.run(
        [sys.executable, "-m", "rollout_cli", "run", EXAMPLE / "job.yaml", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )

    assert run.returncode == 0, run.stderr
    log = (tmp_path / "here" / "logs" / "learner.log").read_text()
    assert re.findall(r"batch (\d+) of default-0-0: \[4, 100\] frames, mean distance [\d.]+,", log) == [
        str(n) for n in range(1, 11)
    ]
    assert "frames             4,000 (100 % of 4,000)" in run.stdout
