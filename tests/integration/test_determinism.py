"""`determinism: Strict`: two runs of one manifest give the same data, byte for byte, whatever the number of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

POLICY = """
import torch
from torch.distributions import Categorical


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Linear(4, 2)

    def forward(self, observation):
        return Categorical(logits=self.logits(observation))


def make_policy(observation_spec, action_spec):
    return Linear()
"""

LEARNER = """
import hashlib, json, os, pathlib
import torch
from policy import Linear
from rollout_stream import RolloutStream

torch.manual_seed(3)
torch.set_num_threads(1)
policy = Linear()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
digests = {}
with RolloutStream.connect() as stream:
    for batches in stream.rounds("learner"):
        for batch in batches:
            header, data = batch.header, batch.data
            parts = [key if isinstance(key, str) else ".".join(key) for key in data.keys(True, True)]
            body = b"".join(data[key].numpy().tobytes() for key in data.keys(True, True))
            name = f"{header.worker.slot}/{header.sequence}"
            digests[name] = [hashlib.sha256(body).hexdigest(), header.policy_version[0], list(header.shape), parts]
            loss = -policy(data["observation"]).log_prob(data["action"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        stream.weights.publish(policy)
        for batch in batches:
            batch.ack()
pathlib.Path(os.environ["ROLLOUT_RUN_DIR"], "digests.json").write_text(json.dumps(digests))
"""


@pytest.mark.probe("P-60")
@pytest.mark.parametrize("replicas", [1, 2])
def test_two_strict_runs_give_the_same_bytes(job_dir: Any, start_run: Any, replicas: int) -> None:
    job_dir.write("policy.py", POLICY)
    job_dir.write("learner.py", LEARNER)
    spec = job_dir.manifest["spec"]
    spec["env"] = {
        "entrypoint": "rollout_worker.envs:GymEnv",
        "kwargs": {"env_name": "CartPole-v1"},
        "envsPerWorker": 4,
    }
    # 410 frames: whole batches, a shorter one, and a rest of two environments.
    spec["collector"] = {"framesPerBatch": 64, "totalFrames": 410, "initRandomFrames": 70}
    spec |= {"determinism": "Strict", "replicas": replicas, "weights": {"maxStaleness": 1}, "seed": 5}

    found = []
    for processes in (1, 4):
        spec["env"]["processes"] = processes
        run = start_run("--learner", "learner.py")
        assert run.wait(300) == 0, run.stdout + run.stderr
        found.append(json.loads(Path(run.run_dir, "digests.json").read_text()))
        conditions = json.loads((run.run_dir / "job.json").read_text())["status"]["conditions"]
        assert {c["type"]: c["status"] for c in conditions}["Reproducible"] == "True"
        run.assert_nothing_is_left()

    first, second = found
    assert first == second
    versions = {int(name.split("/")[1]): version for name, (_, version, _, _) in first.items()}
    assert all(version == max(0, sequence - 2) for sequence, version in versions.items())
    frames = sum(shape[0] * shape[1] for _, _, shape, _ in first.values())
    assert frames == 410
    assert {name.split("/")[0] for name in first} == {f"default-{index}" for index in range(replicas)}
