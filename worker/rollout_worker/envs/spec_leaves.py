"""The specs of single leaves, under one roof: bases and helpers, numbers, categories, and what is no tensor."""

from __future__ import annotations

from rollout_worker.envs.spec_base import (
    Device,
    LeafSpec,
    Shape,
    Spec,
    as_device,
    as_shape,
    expanded,
    indexed,
)
from rollout_worker.envs.spec_categories import Categorical, MultiCategorical, MultiOneHot, OneHot
from rollout_worker.envs.spec_nontensor import NonTensor
from rollout_worker.envs.spec_numbers import Binary, Bounded, Unbounded

__all__ = [
    "Binary",
    "Bounded",
    "Categorical",
    "Device",
    "LeafSpec",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Shape",
    "Spec",
    "Unbounded",
    "as_device",
    "as_shape",
    "expanded",
    "indexed",
]
