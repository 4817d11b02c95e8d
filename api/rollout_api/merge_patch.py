"""JSON merge patch (RFC 7396): what the patch names is replaced, null removes, objects are merged. Pure.

Used by the PATCH route to see what a job would become, and by stores that apply the patch themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(target: Any, patch: Any) -> Any:
    """What `target` becomes. Neither argument is changed; lists are replaced as a whole."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
