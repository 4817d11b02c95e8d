"""Arguments of the environment: from the worker's document, or as text from a ConfigMap (`env.kwargsFrom`).

Text keeps what an API server would change: `1.0` stays a float, long texts stay readable. JSON or YAML. Called once, before
any environment is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from rollout_contract import podenv
from rollout_contract.errors import ConfigurationError
from rollout_contract.podenv import WorkerDocument


def env_kwargs(document: WorkerDocument, environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The keyword arguments. ConfigurationError for a text that is no mapping with text keys."""
    source = document.env.kwargs_from
    if source is None:
        return document.env.kwargs or {}
    ref = source.config_map_key_ref
    where = f"spec.env.kwargsFrom: key {ref.key} of ConfigMap {ref.name}"
    text = environ.get(podenv.ENV_KWARGS)
    if text is None:
        raise ConfigurationError(f"{where}: the variable {podenv.ENV_KWARGS} is not set")
    kwargs = _parsed(text, where)
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise ConfigurationError(
            f"{where}: a mapping of argument names is needed, not {type(kwargs).__name__}"
        )
    return kwargs


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass  # not JSON: YAML, of which the parser gives the better message
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where} is neither JSON nor YAML: {error}") from error
