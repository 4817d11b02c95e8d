"""What environments say of themselves when they are made, in plain data, and where that is not what is known of them.

Made where an environment lives; compared in the caller's process, before anything is stepped. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs.describe import EnvDescription, Key, LeafSpec, spelled


@dataclass(frozen=True, slots=True)
class Report:
    """One environment: its name, its own batch size, its leaves by group and key, and whether it takes tensordicts itself.
    What no plain description stands for (a stack of unlike specs) is described by a text."""

    name: str
    batch_size: tuple[int, ...]
    leaves: tuple[tuple[Key, LeafSpec | str], ...]
    takes_rows: bool


Reported = EnvDescription | Report
"""What a process says of an environment: a description where it is stepped through blocks, else a report."""


class MetaDataMismatch(LayoutMismatch):
    """An environment is not what is known of it. `env_index` is the first such one, `differences` names its leaves."""

    def __init__(
        self, env_index: int, differences: Sequence[str], *, others: Sequence[int], advice: str
    ) -> None:
        self.env_index = env_index
        self.what, self.differences = f"environment {env_index}'s", tuple(differences)
        more = f" (nor {'is' if len(others) == 1 else 'are'} {_listed(others)})" if others else ""
        lines = "".join(f"\n  {line}" for line in differences)
        text = f"environment {env_index} is not what is known of it{more}:{lines}\n{advice}"
        super(LayoutMismatch, self).__init__(text)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of each environment beforehand. `is_given`: by the caller; otherwise from one that was looked at."""

    reports: tuple[Report, ...]
    is_given: bool

    def compare(self, said: Sequence[Reported]) -> None:
        """Raise MetaDataMismatch where environments are something else."""
        seen: dict[tuple[int, int], list[str]] = {}
        wrong: dict[int, list[str]] = {}
        for index, (known, found) in enumerate(zip(self.reports, said, strict=True)):
            pair = id(known), id(found)
            if pair not in seen:
                seen[pair] = self._unlike(known, report_of(found))
            if seen[pair]:
                wrong[index] = seen[pair]
        if wrong:
            first, *others = wrong
            raise MetaDataMismatch(first, wrong[first], others=others, advice=_ADVICE[self.is_given])

    def _unlike(self, known: Report, found: Report) -> list[str]:
        here = "given" if self.is_given else "in the caller's process"
        if known.batch_size != found.batch_size:
            return [f"batch size: {here} {list(known.batch_size)}, reported {list(found.batch_size)}"]
        if found.takes_rows and not known.takes_rows:
            return [f"kind: {here} a gymnasium environment, reported {found.name}, which takes tensordicts"]
        wanted, reported = dict(known.leaves), dict(found.leaves)
        return [
            f"{key[0]} {spelled(key[1:])}: {here} {_in_words(wanted.get(key), reported.get(key))}, "
            f"reported {_in_words(reported.get(key), wanted.get(key))}"
            for key in {**wanted, **reported}
            if _compared(wanted.get(key)) != _compared(reported.get(key))
        ]


_ADVICE = {
    True: "Give meta_data that says what is reported, or none: then one environment is made beforehand, and looked at.",
    False: "A factory must make environments with the same specs wherever, and for whichever index, it is called.",
}


def report_of(said: Reported) -> Report:
    """Either form as a report."""
    if isinstance(said, Report):
        return said
    leaves = (((group, *key), leaf) for group, leaves in said.groups() for key, leaf in leaves)
    return Report(said.name, said.batch_size, tuple(leaves), said.takes_rows)


def _compared(leaf: LeafSpec | str | None) -> Any:
    """A leaf without what concerns its own process alone: what an environment calls its first category."""
    return replace(leaf, start=()) if isinstance(leaf, LeafSpec) and leaf.start else leaf


def _in_words(leaf: LeafSpec | str | None, other: LeafSpec | str | None) -> str:
    """A leaf in words, with its bounds or categories where these are all that differs."""
    if leaf is None:
        return "nothing"
    if not isinstance(leaf, LeafSpec) or str(leaf) != str(other):
        return str(leaf)
    return f"{str(leaf).removesuffix(')')}, {leaf.limits()})"


_MOST = 10
"""So many environments are listed."""


def _listed(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:_MOST]))
    return shown if len(indices) <= _MOST else f"{shown} and {len(indices) - _MOST} more"
