"""The Lua scripts: loaded once from the files beside this one, each with the shared prelude in front.

Comments and indentation are taken out, because the append sends its script's text with every batch (see `append.lua`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rollout_contract.keys import JobKeys

_PRELUDES = {"delete": ("common",), "lease": ("common",), "publish": ("common",)}
"""Which parts stand before a script: only what it uses."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and what the server calls it."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of a name. FileNotFoundError if there is none."""
    text = "\n".join(_bare(part) for part in (*_PRELUDES.get(name, ("common", "flow", "entries")), name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def keys_of(keys: JobKeys) -> tuple[str, ...]:
    """Every fixed key of a job, in the order that the prelude reads them."""
    return (
        keys.batches,
        keys.counters,
        keys.budget,
        keys.workers,
        keys.writers,
        keys.pending,
        keys.groups,
        keys.weights,
        keys.layout,
        keys.control,
        keys.episodes,
        keys.bad,
    )


def _bare(name: str) -> str:
    source = files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    lines = (line.split(" -- ")[0].strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))
