"""Reads a manifest file: YAML text to a checked `RolloutJob`, or every fault with the line where it stands.

Called by `validate` and `run`. What a manifest may hold is the contract's matter (`parse_manifest`); here is only what
YAML adds: syntax, doubled keys, aliases that grow without bound, several documents in one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rollout_cli.errors import UsageError
from rollout_contract.errors import Fault, SpecError
from rollout_contract.spec import RolloutJob, parse_manifest

MAX_MANIFEST_BYTES = 1024 * 1024
"""The API server takes no more than about this either."""
MAX_NODES = 100_000
"""Values in a manifest with its aliases written out: enough for any job, too few to fill memory."""
MAX_SHOWN = 120
"""Characters of a wrong value that are printed."""

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML as the API server reads it: what looks like a date stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class ManifestError(UsageError):
    """A manifest is wrong. `faults` holds all of it; the text lists them with file and line."""

    def __init__(self, source: str, faults: Sequence[Fault], lines: Mapping[str, int] | None = None) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__(format_faults(source, faults, lines or {}))


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest as it was read: the data, and the line (from 1) of each path."""

    source: str
    data: object
    lines: Mapping[str, int] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """The one YAML document of a file. ManifestError for what is no single, finite document with plain keys."""
    text = _read_text(path)
    try:
        nodes = list(_compose_all(text))
    except yaml.YAMLError as error:
        raise ManifestError(str(path), [_syntax_fault(error)]) from error
    except RecursionError as error:
        raise ManifestError(str(path), [Fault("", None, "nested too deeply for a manifest")]) from error
    if len(nodes) != 1:
        found = (
            "no YAML document: the file is empty"
            if not nodes
            else f"{len(nodes)} YAML documents: write one job per file"
        )
        raise ManifestError(str(path), [Fault("", None, found)])
    faults, lines = _survey(nodes[0])
    if faults:
        raise ManifestError(str(path), faults, lines)
    try:
        data = _Loader("").construct_document(nodes[0])
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: `0x` and other text that only looks like a number
        raise ManifestError(str(path), [_syntax_fault(error)]) from error
    return Document(str(path), data, lines)


def load_job(path: Path, changes: Iterable[tuple[str, object]] = ()) -> RolloutJob:
    """The job of a manifest file, after `changes` (path, value) were made. ManifestError with every fault."""
    document = read_document(path)
    data = document.data
    for where, value in changes:
        data = with_value(data, where, value)
    try:
        return parse_manifest(data)
    except SpecError as error:
        raise ManifestError(document.source, error.faults, document.lines) from error


def parse_change(text: str) -> tuple[str, object]:
    """`spec.env.processes=4` → path and value (YAML). UsageError for what is no assignment."""
    where, equals, value = text.partition("=")
    if not equals or not where.strip():
        raise UsageError(f"--set {text}: write PATH=VALUE, such as spec.env.processes=4")
    try:
        return where.strip(), yaml.load(value, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"--set {text}: the value is no YAML: {error}") from error


_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def with_value(data: object, path: str, value: object) -> object:
    """A copy of `data` in which the value at `path` (`spec.workerGroups[0].name`) is another. Missing mappings are made."""
    steps = [int(index) if index else key for key, index in _STEP.findall(path)]
    rest = _STEP.sub("", path).replace(".", "")
    if not steps or rest:
        raise UsageError(f"--set {path}: no path; write it as in spec.workerGroups[0].name")
    return _replaced(data, steps, value, path)


def _replaced(data: object, steps: Sequence[str | int], value: object, path: str) -> object:
    if not steps:
        return value
    head, rest = steps[0], steps[1:]
    if isinstance(head, int):
        if not isinstance(data, list) or head >= len(data):
            raise UsageError(f"--set {path}: there is no element [{head}] in the manifest")
        return [_replaced(v, rest, value, path) if i == head else v for i, v in enumerate(data)]
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UsageError(f"--set {path}: {head!r} is looked for in a {type(data).__name__}, not in a mapping")
    return {**data, head: _replaced(data.get(head), rest, value, path)}


def format_faults(source: str, faults: Sequence[Fault], lines: Mapping[str, int]) -> str:
    """The faults for people: one block each, with line, path, value and what is allowed."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    blocks = [f"{source}: {count}"]
    for fault in faults:
        line = _line_of(fault.path, lines)
        place = f"  {source}:{line}: " if line else "  "
        shown = f"{fault.path}: " if fault.path else ""
        blocks.append(f"{place}{shown}{fault.message}{_value_text(fault)}")
    return "\n".join(blocks)


def _value_text(fault: Fault) -> str:
    """The wrong value, unless the message names it already or it is a whole tree."""
    if fault.value is None or isinstance(fault.value, dict | list | tuple):
        return ""
    shown = repr(fault.value)
    if shown in fault.message:
        return ""
    return f" (here: {shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + '…'})"


def _line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """The line of a path, or of the nearest thing around it that is written down."""
    while path:
        if path in lines:
            return lines[path]
        path = re.sub(r"(\.[^.\[\]]*|\[[^\]]*\]|^[^.\[\]]+)$", "", path)
    return None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the manifest {path}: {error.strerror or error}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes: that is no manifest")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            str(path), [Fault("", None, f"no UTF-8 text: byte {error.start} is no character")]
        ) from error


def _compose_all(text: str) -> Iterator[yaml.Node]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                yield node
    finally:
        loader.dispose()


def _syntax_fault(error: Exception) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return Fault("", None, f"not YAML: {problem}{where}")


def _survey(root: yaml.Node) -> tuple[list[Fault], dict[str, int]]:
    """Doubled keys, keys that are no text, too many nodes, circles; and the line of every path."""
    faults: list[Fault] = []
    lines: dict[str, int] = {}
    open_nodes: set[int] = set()
    count = 0

    def visit(node: yaml.Node, path: str) -> bool:
        nonlocal count
        count += 1
        if count > MAX_NODES:
            faults.append(
                Fault(
                    "",
                    None,
                    f"more than {MAX_NODES} values, with the aliases written out: that is no manifest",
                )
            )
            return False
        if id(node) in open_nodes:
            faults.append(Fault(path, None, "an alias that contains itself"))
            return False
        lines.setdefault(path, node.start_mark.line + 1)
        open_nodes.add(id(node))
        try:
            return all(visit(child, inner) for child, inner in _children(node, path, faults))
        finally:
            open_nodes.discard(id(node))

    try:
        visit(root, "")
    except RecursionError:
        faults.append(Fault("", None, "nested too deeply for a manifest"))
    return faults, lines


def _children(node: yaml.Node, path: str, faults: list[Fault]) -> Iterator[tuple[yaml.Node, str]]:
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield child, f"{path}[{index}]"
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if key.tag not in (_TEXT, _MERGE):
                read = key.tag.rpartition(":")[2]
                faults.append(
                    Fault(
                        path, None, f"the key in line {line} is read as {read}, not as text: put it in quotes"
                    )
                )
                continue
            inner = f"{path}.{key.value}" if path else key.value
            if key.value in first and key.tag != _MERGE:
                faults.append(
                    Fault(inner, None, f"written twice: in line {first[key.value]} and in line {line}")
                )
            first.setdefault(key.value, line)
            yield child, inner
