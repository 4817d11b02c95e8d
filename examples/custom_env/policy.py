"""The policy of the example: walk towards the goal, and stray a little."""

from torch import Tensor, nn
from torch.distributions import Independent, Normal


class Walker(nn.Module):
    """Takes the parts of the observation by their names, each `[num_envs, 2]`; the worker draws the action."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, position: Tensor, goal: Tensor) -> Independent:
        return Independent(Normal((goal - position).clamp(-0.7, 0.7), self.noise), 1)


def make_policy(observation_spec, action_spec, noise: float) -> Walker:
    """Called once in each worker; `noise` comes from `spec.policy.kwargs`."""
    return Walker(noise)
