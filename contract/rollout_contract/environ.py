"""Reads a program's settings from its environment's variables, and gathers everything that is wrong with them. Pure.

Used by the programs that run in a cluster, so that they understand the same variables in the same way. No value is
ever put into a fault: it may be a secret in the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from rollout_contract import names
from rollout_contract.errors import Fault

ALL_NAMESPACES: Final = "*"
LOG_LEVEL: Final = "ROLLOUT_LOG_LEVEL"
LOG_FORMAT: Final = "ROLLOUT_LOG_FORMAT"

T = TypeVar("T")


@dataclass(slots=True)
class EnvironReader:
    """Variables of one environment; `faults` holds what was wrong so far."""

    environ: Mapping[str, str]
    faults: list[Fault] = field(default_factory=list)

    def text(self, name: str, default: str = "") -> str:
        """A variable that is unset or empty has its default."""
        return self.environ.get(name, "").strip() or default

    def read(self, name: str, parse: Callable[[str], T], default: T, wanted: str) -> T:
        """A variable through a parser that raises ValueError; `wanted` says in the fault what is allowed."""
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            self.fault(name, f"is not {wanted}")
            return default

    def flag(self, name: str) -> bool:
        """True or false; false if unset."""
        return self.read(name, one_of("true", "false"), "false", "true or false") == "true"

    def log_level(self, name: str = LOG_LEVEL) -> str:
        """ROLLOUT_LOG_LEVEL (or another variable), as `logging` spells it; INFO if unset."""
        levels = one_of("debug", "info", "warning", "error")
        return self.read(name, levels, "info", "DEBUG, INFO, WARNING or ERROR").upper()

    def logs_as_json(self, *, default: bool = True) -> bool:
        """ROLLOUT_LOG_FORMAT; JSON if unset, or what `default` says."""
        unset = "json" if default else "text"
        return self.read(LOG_FORMAT, one_of("json", "text"), unset, "json or text") == "json"

    def namespaces(self, own: str) -> tuple[str, ...]:
        """ROLLOUT_NAMESPACES; empty for all of them, the own one (if there is one) if unset."""
        default = (own,) if own else ()
        return self.read("ROLLOUT_NAMESPACES", namespaces_of, default, "a list of namespaces, or *")

    def fault(self, name: str, message: str) -> None:
        """Something is wrong with a variable."""
        self.faults.append(Fault(name, None, message))


def parts_of(text: str) -> list[str]:
    """The parts of a list with commas, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


def namespaces_of(text: str) -> tuple[str, ...]:
    """A list of namespaces, sorted; empty for `*`. ValueError for anything else."""
    if text == ALL_NAMESPACES:
        return ()
    found = tuple(sorted(set(parts_of(text))))
    if not found or not all(names.NAMESPACE.fullmatch(part) for part in found):
        raise ValueError(text)
    return found


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser for a closed set, in lower case."""

    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return parse


def port_of(text: str) -> int:
    """A port, 0 included. ValueError for anything else."""
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port
