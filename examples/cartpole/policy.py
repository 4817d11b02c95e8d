"""The policy of the CartPole example: workers make it by its entrypoint, the learner trains it and publishes its weights."""

import math

from torch import Tensor, nn
from torch.distributions import Categorical


def mlp(num_inputs: int, num_outputs: int, *, hidden: int = 64, last_gain: float = 1.0) -> nn.Sequential:
    """Two hidden layers of tanh, orthogonal weights; `last_gain` scales the first outputs."""
    layers = [nn.Linear(num_inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, num_outputs)]
    for layer, gain in zip(layers, (math.sqrt(2), math.sqrt(2), last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Policy(nn.Module):
    """Observations `[..., num_inputs]` to a distribution over `num_actions` actions.

    The worker draws the action and records `log_prob` beside it.
    """

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.logits = mlp(num_inputs, num_actions, last_gain=0.01)  # nearly uniform at first

    def forward(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.logits(observation), validate_args=False)


def make_policy(observation_spec, action_spec) -> Policy:
    """Called once in each worker with the specs of its environments."""
    return Policy(observation_spec["observation"].shape[-1], action_spec.n)
