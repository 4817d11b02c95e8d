"""Loads published weights into the policy: fetched, checked and applied whole, between two batches.

Called by the loop. Checks come first, all of them, so that a version that does not fit leaves the policy as it was.
"""

from __future__ import annotations

from typing import Any

import torch

from rollout_contract.errors import ConfigurationError, WeightsRejected
from rollout_contract.messages import Layout
from rollout_contract.podenv import WorkerDocument
from rollout_stream import codec
from rollout_stream.weights import WeightsReader
from rollout_stream.writer import StreamWriter


class ModuleLoader:
    """Puts versions into one `torch.nn.Module`."""

    def __init__(self, reader: WeightsReader, module: torch.nn.Module) -> None:
        self._reader = reader
        self._module = codec.unwrapped(module)
        self._layout = weights_layout_of(module)

    def load(self, version: int) -> None:
        """Fetch, check and load a version. WeightsRejected names everything that does not fit."""
        state = codec.state_of(self._reader.fetch(version).data)
        if differences := self._layout.differences(codec.layout_of_state(state)):
            raise WeightsRejected(differences)
        codec.check_finite(state)
        self._module.load_state_dict(state, strict=True)


class NoParameters:
    """Stands in where the policy is a plain function: every version is rejected."""

    def load(self, version: int) -> None:
        """WeightsRejected."""
        raise WeightsRejected(
            [f"version {version}: the policy is no torch.nn.Module, so it has no weights to load"]
        )


def open_loader(
    document: WorkerDocument, writer: StreamWriter, policy: object
) -> ModuleLoader | NoParameters:
    """The loader for what the policy's entrypoint made."""
    if not isinstance(policy, torch.nn.Module):
        return NoParameters()
    return ModuleLoader(WeightsReader(writer.session, document.job, reader=str(document.worker)), policy)


def weights_layout_of(policy: Any) -> Layout:
    """What the job's weights look like: empty for a policy without parameters.

    ConfigurationError for a module whose state holds more than tensors.
    """
    if not isinstance(policy, torch.nn.Module):
        return Layout()
    try:
        return codec.layout_of_state(policy)
    except WeightsRejected as error:
        raise ConfigurationError(
            f"the policy's state_dict cannot be published as weights: {error}"
        ) from error
