"""PPO on the batches of a RolloutJob.

A round is one batch of each worker. For each round: estimate advantages, update the policy, publish it, ack the batches.
The workers wait for the new version (`maxStaleness: 0`), so all data is on-policy. When the mean return over the last
100 episodes reaches the target, the learner completes the job.
"""

import csv
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch
from policy import Policy, mlp
from tensordict import TensorDict
from torch import Tensor, nn

from rollout_contract.messages import EndKind
from rollout_stream import RolloutStream


@dataclass(frozen=True)
class Settings:
    target_return: float = 475.0
    total_frames: int = 409_600  # as in job.yaml: the learning rate reaches 0 there
    frames_per_round: int = 2_048
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.9
    clip: float = 0.2
    epochs: int = 8
    minibatch: int = 256
    value_weight: float = 0.5
    max_grad_norm: float = 0.5


def advantages_of(data: TensorDict, critic: nn.Module, settings: Settings) -> TensorDict:
    """Add `advantage` and `value_target` (generalised advantage estimation) to data `[num_envs, num_steps]`.

    An episode that was truncated goes on beyond the limit, so its last value counts; one that terminated has none.
    """
    with torch.no_grad():
        value = critic(data["observation"]).squeeze(-1)
        next_value = critic(data["next", "observation"]).squeeze(-1)
    reward = data["next", "reward"].squeeze(-1)
    terminated = data["next", "terminated"].squeeze(-1)
    done = data["next", "done"].squeeze(-1)

    delta = reward + settings.gamma * next_value * ~terminated - value
    decay = settings.gamma * settings.gae_lambda * ~done
    advantage = torch.zeros_like(value)
    following = torch.zeros_like(value[:, 0])
    for step in reversed(range(value.shape[1])):
        following = delta[:, step] + decay[:, step] * following
        advantage[:, step] = following
    return data.set("advantage", advantage).set("value_target", advantage + value)


class Ppo:
    """The policy, its critic, and how both are improved."""

    def __init__(self, policy: Policy, critic: nn.Module, settings: Settings) -> None:
        self.policy, self.critic, self.settings = policy, critic, settings
        self.parameters = [*policy.parameters(), *critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=settings.learning_rate, eps=1e-5)

    def update(self, data: TensorDict, progress: float) -> None:
        """Improve on a round of data `[num_frames]`; `progress` runs from 0 to 1 and anneals the learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * max(0.0, 1.0 - progress)
        for _ in range(self.settings.epochs):
            for rows in torch.randperm(len(data)).split(self.settings.minibatch):
                self.optimizer.zero_grad()
                self.loss(data[rows]).backward()
                nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
                self.optimizer.step()

    def loss(self, data: TensorDict) -> Tensor:
        """Clipped surrogate loss of the policy plus the critic's squared error."""
        advantage = data["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        ratio = (self.policy(data["observation"]).log_prob(data["action"]) - data["log_prob"]).exp()
        clipped = ratio.clamp(1 - self.settings.clip, 1 + self.settings.clip)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = (self.critic(data["observation"]).squeeze(-1) - data["value_target"]).square().mean()
        return policy_loss + self.settings.value_weight * value_loss


@dataclass
class Curve:
    """Mean return over the last 100 episodes, after each round."""

    start: float = field(default_factory=time.monotonic)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    points: list[tuple[int, float, float]] = field(default_factory=list)  # frames, seconds, mean return

    @property
    def mean_return(self) -> float:
        return sum(self.returns) / max(1, len(self.returns))

    def is_at(self, target: float) -> bool:
        return len(self.returns) == self.returns.maxlen and self.mean_return >= target

    def add(self, frames: int) -> None:
        self.points.append((frames, time.monotonic() - self.start, self.mean_return))

    def save(self, directory: Path) -> None:
        """Write `curve.csv`, `curve.png`, and `result.json`, from which `rolloutctl run` takes its last lines."""
        import matplotlib.pyplot as plt  # slow to import, and needed only now

        with (directory / "curve.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("frames", "seconds", "mean_return"), *self.points])
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        axes.plot([p[0] for p in self.points], [p[2] for p in self.points])
        axes.set(xlabel="frames", ylabel="mean return of the last 100 episodes", title="CartPole-v1, PPO")
        axes.grid(alpha=0.3)
        figure.savefig(directory / "curve.png", dpi=120)
        frames = self.points[-1][0] if self.points else 0
        result = {"mean_return": self.mean_return, "frames": frames, "curve": "curve.png"}
        (directory / "result.json").write_text(json.dumps(result))


def main() -> None:
    torch.set_num_threads(1)  # the networks are small, and the workers want the other cores
    settings, directory = Settings(), Path(os.environ.get("ROLLOUT_RUN_DIR", "."))
    stream = RolloutStream.connect()  # from the variables that a learner beside a job has
    torch.manual_seed(stream.control.seed().seed)
    ppo, curve = Ppo(Policy(num_inputs=4, num_actions=2), mlp(4, 1), settings), Curve()
    if stream.weights.latest():  # this learner was started again: go on with what it had published
        ppo.policy.load_state_dict(stream.weights.get())
    version = stream.weights.publish(ppo.policy)

    frames, batches = 0, []
    for batch in stream.batches(group="learner"):
        batches.append(batch)
        curve.returns.extend(episode_return for episode_return, _ in batch.header.episodes.newest)
        if sum(b.header.frames for b in batches) < settings.frames_per_round:
            continue
        data = torch.cat([advantages_of(b.data, ppo.critic, settings).flatten() for b in batches])
        ppo.update(data, progress=frames / settings.total_frames)
        frames += len(data)
        curve.add(frames)
        print(
            f"version {version:3d}   frames {frames:7,d}   mean return {curve.mean_return:6.1f}", flush=True
        )
        version = stream.weights.publish(ppo.policy)
        if curve.is_at(settings.target_return):
            stream.control.finish(EndKind.FINISHED, reason="Solved")  # the job is Complete, and the loop ends
        for b in batches:
            b.ack()
        batches = []

    curve.save(directory)
    verdict = "solved" if curve.is_at(settings.target_return) else "not solved"
    print(f"{verdict}: mean return {curve.mean_return:.1f} after {frames:,} frames", flush=True)


if __name__ == "__main__":
    main()
