"""The names that scenarios use, from the library under test or from the oracle: `PARITY_API` chooses.

Scenarios and their environments import from here alone, so that one text runs in both. Child processes inherit
the variable, and so make the same choice.
"""

from __future__ import annotations

import os

from tensordict import NonTensorData, TensorDict, TensorDictBase

IS_ORACLE = os.environ.get("PARITY_API", "ours") == "torchrl"

if IS_ORACLE:
    from torchrl.data import Binary, Composite, NonTensor, Unbounded
    from torchrl.envs import EnvBase, ParallelEnv, SerialEnv
else:
    from rollout_worker.envs import (  # type: ignore[assignment]
        Binary,
        Composite,
        EnvBase,
        NonTensor,
        ParallelEnv,
        SerialEnv,
        Unbounded,
    )

__all__ = [
    "IS_ORACLE",
    "Binary",
    "Composite",
    "EnvBase",
    "NonTensor",
    "NonTensorData",
    "ParallelEnv",
    "SerialEnv",
    "TensorDict",
    "TensorDictBase",
    "Unbounded",
]
