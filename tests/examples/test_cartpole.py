"""The CartPole example: its arithmetic, and a short run of it."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tensordict import TensorDict

EXAMPLE = Path(__file__).parents[2] / "examples" / "cartpole"


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's learner, imported as its users' Python does."""
    for name in ("learner", "policy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(EXAMPLE)
    module = importlib.import_module("learner")
    yield module
    for name in ("learner", "policy"):
        sys.modules.pop(name, None)


def batch(
    num_envs: int, num_steps: int, *, terminated: set = frozenset(), truncated: set = frozenset()
) -> TensorDict:
    """Random data whose episodes end in the given (env, step)s."""
    flags = {
        name: torch.zeros(num_envs, num_steps, 1, dtype=torch.bool) for name in ("terminated", "truncated")
    }
    for name, places in (("terminated", terminated), ("truncated", truncated)):
        for env, step in places:
            flags[name][env, step] = True
    return TensorDict(
        {
            "observation": torch.randn(num_envs, num_steps, 4),
            "action": torch.randint(0, 2, (num_envs, num_steps)),
            "log_prob": torch.full((num_envs, num_steps), -0.6931),
            "next": {
                "observation": torch.randn(num_envs, num_steps, 4),
                "reward": torch.rand(num_envs, num_steps, 1),
                **flags,
                "done": flags["terminated"] | flags["truncated"],
            },
        },
        batch_size=[num_envs, num_steps],
    )


def expected_advantage(data: TensorDict, critic, env: int, step: int, *, gamma: float, lam: float) -> float:
    """By the definition: the weighted sum of temporal differences up to the end of the episode."""
    total, weight = 0.0, 1.0
    for k in range(step, data.batch_size[1]):
        frame = data[env, k]
        value, following = critic(frame["observation"]), critic(frame["next", "observation"])
        bootstrap = 0.0 if frame["next", "terminated"] else gamma * following
        total += weight * float(frame["next", "reward"] + bootstrap - value)
        if frame["next", "done"]:
            break
        weight *= gamma * lam
    return total


def test_advantages_stop_at_ends_and_count_what_a_limit_cut_off(learner):
    torch.manual_seed(0)
    data = batch(2, 6, terminated={(0, 2)}, truncated={(1, 3)})
    critic = learner.mlp(4, 1)
    settings = learner.Settings()

    found = learner.advantages_of(data, critic, settings)["advantage"]

    with torch.no_grad():
        expected = [
            [
                expected_advantage(data, critic, e, s, gamma=settings.gamma, lam=settings.gae_lambda)
                for s in range(6)
            ]
            for e in range(2)
        ]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_value_targets_are_advantage_plus_value(learner):
    torch.manual_seed(0)
    data = batch(1, 5)
    critic = learner.mlp(4, 1)

    learner.advantages_of(data, critic, learner.Settings())

    value = critic(data["observation"]).squeeze(-1)
    torch.testing.assert_close(data["value_target"] - data["advantage"], value.detach())


def test_an_update_makes_rewarded_actions_likelier(learner):
    torch.manual_seed(0)
    ppo = learner.Ppo(learner.Policy(4, 2), learner.mlp(4, 1), learner.Settings())
    data = batch(8, 64)
    data["next", "reward"] = data["action"].unsqueeze(-1).float()
    data["next", "done"][:] = data["next", "terminated"][:] = True
    for _ in range(5):
        with torch.no_grad():
            data["log_prob"] = ppo.policy(data["observation"]).log_prob(data["action"])
        ppo.update(learner.advantages_of(data, ppo.critic, ppo.settings).flatten(), progress=0.0)

    with torch.no_grad():
        assert ppo.policy(data["observation"]).probs[..., 1].mean() > 0.6
    assert ppo.optimizer.param_groups[0]["lr"] == ppo.settings.learning_rate


def test_the_learning_rate_reaches_zero(learner):
    torch.manual_seed(0)
    ppo = learner.Ppo(learner.Policy(4, 2), learner.mlp(4, 1), learner.Settings())
    data = learner.advantages_of(batch(2, 8), ppo.critic, ppo.settings).flatten()
    before = [p.clone() for p in ppo.parameters]

    ppo.update(data, progress=1.0)

    assert all(torch.equal(a, b) for a, b in zip(before, ppo.parameters, strict=True))


def test_the_policy_starts_nearly_uniform(learner):
    torch.manual_seed(0)
    distribution = learner.Policy(4, 2)(torch.randn(100, 4))

    assert distribution.batch_shape == (100,)
    assert (distribution.probs - 0.5).abs().max() < 0.02


def test_the_target_needs_a_hundred_episodes(learner):
    curve = learner.Curve()
    curve.returns.extend([500.0] * 99)
    assert not curve.is_at(475.0)
    curve.returns.append(500.0)
    assert curve.is_at(475.0)
    curve.returns.extend([0.0] * 10)
    assert not curve.is_at(475.0)


def test_results_are_written_even_if_there_are_none(learner, tmp_path):
    learner.Curve().save(tmp_path)

    assert json.loads((tmp_path / "result.json").read_text()) == {
        "mean_return": 0.0,
        "frames": 0,
        "curve": "curve.png",
    }
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_ends_by_itself_with_its_curve(tmp_path):
    arguments = [
        "--learner",
        EXAMPLE / "learner.py",
        "--set",
        "spec.collector.totalFrames=6144",
        "--run-dir",
        "here",
    ]
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
    lines = run.stdout.splitlines()[-6:]
    assert "Complete" in lines[0]
    expected = ("return", "frames             6,144", "frames per second", "restarts", "here/curve.png")
    for line, words in zip(lines[1:], expected, strict=True):
        assert words in line
    with (tmp_path / "here" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["frames"]) for row in rows] == [2048, 4096, 6144]
    assert json.loads((tmp_path / "here" / "result.json").read_text())["frames"] == 6144
