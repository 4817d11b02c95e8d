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
from rollout_contract.json_text import RepeatedKey, without_repeats
from rollout_contract.podenv import WorkerDocument

_MERGE = "tag:yaml.org,2002:merge"


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


class _Loader(yaml.SafeLoader):
    """Plain YAML in which every key of a mapping stands once, as in JSON."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag != _MERGE and key.value in first:
                raise RepeatedKey(
                    f"the key {key.value!r} stands in line {first[key.value]} and in line {line}"
                )
            first[key.value] = line
        return super().construct_mapping(node, deep)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except RepeatedKey as error:
        raise ConfigurationError(f"{where}: {error}; write it once") from error
    except ValueError:
        pass  # not JSON: YAML, of which the parser gives the better message
    try:
        return yaml.load(text, Loader=_Loader) or {}  # noqa: S506  # derived from the safe loader
    except RepeatedKey as error:
        raise ConfigurationError(f"{where}: {error}; write it once") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where} is neither JSON nor YAML: {error}") from error
