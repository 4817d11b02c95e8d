"""Manifests of jobs that run on workers which ask for little."""

from __future__ import annotations

from typing import Any

from installed import Document, merged

POLICY = """
import torch

class Random(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.randint(2, observation.shape[:-1])

def make_policy(observation_spec, action_spec):
    return Random()
"""
"""A random policy for CartPole, with weights that do nothing."""


def code(**more: str) -> Document:
    """A ConfigMap with a random policy for CartPole, and other modules."""
    data = {"policy.py": POLICY, **{f"{name}.py": text for name, text in more.items()}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": data}


def job(
    name: str, *, template: Document | None = None, group: Document | None = None, **spec: Any
) -> Document:
    """A small job that runs: CartPole with a random policy, on workers that ask for little."""
    container = {"name": "worker", "resources": {"requests": {"cpu": "20m", "memory": "256Mi"}}}
    pod = {"spec": {"terminationGracePeriodSeconds": 10, "containers": [merged(container, template or {})]}}
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": name},
        "spec": {
            "env": {
                "entrypoint": "rollout_worker.envs:GymEnv",
                "kwargs": {"env_name": "CartPole-v1"},
                "envsPerWorker": 2,
                "processes": 1,
            },
            "policy": {"entrypoint": "policy:make_policy"},
            "code": {"configMapRef": {"name": "code"}},
            "collector": {"framesPerBatch": 64},
            "replicas": 1,
            "workerGroups": [{"name": "w", "elastic": True, "template": pod, **(group or {})}],
            **spec,
        },
    }
