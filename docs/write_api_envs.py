"""Writes the reference of `rollout_worker.envs` into `docs/api-envs.md`, from docstrings. A test holds the two together."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollout_worker import envs

TARGET = Path(__file__).with_name("api-envs.md")

CHAPTERS = {
    "Environments": ("make_env", "EnvBase", "check_env_specs", "EnvSpecFaults"),
    "Batches": (
        "SerialEnv",
        "ParallelEnv",
        "EnvCreator",
        "EnvMetaData",
        "MetaDataMismatch",
        "Ready",
        "Effort",
    ),
    "Adapters": ("GymEnv", "GymVectorEnv", "PettingZooEnv", "TorchRLEnv"),
    "Transforms": (
        "TransformedEnv",
        "Transform",
        "Compose",
        "StepCounter",
        "RewardSum",
        "InitTracker",
        "ActionMask",
    ),
    "Specs": (
        "Spec",
        "Unbounded",
        "Bounded",
        "Binary",
        "Categorical",
        "OneHot",
        "MultiCategorical",
        "MultiOneHot",
        "NonTensor",
        "Composite",
        "Stacked",
        "StackedComposite",
        "stack_specs",
    ),
    "Blocks of frames": ("open_envs", "VectorEnv", "BlockLayout", "Leaf", "Episodes"),
}
"""Every public name, in the order in which one meets it."""

HEAD = """# Reference: rollout_worker.envs

Written from the docstrings by `docs/write_api_envs.py`. `B` stands for an environment's batch size (nothing for a single
one, `n` for a batch of n), `T` for time. How to bring your own environment: [environments.md](environments.md).
"""


def document() -> str:
    """The whole page. Raises KeyError for a public name that is in no chapter."""
    placed = [name for names in CHAPTERS.values() for name in names]
    missing = set(envs.__all__) - set(placed)
    if missing:
        raise KeyError(f"no chapter holds {', '.join(sorted(missing))}: add them to CHAPTERS")
    parts = [HEAD]
    for title, names in CHAPTERS.items():
        parts.append(f"## {title}\n")
        parts += ["\n".join(_entry(name, getattr(envs, name))) for name in names if name in envs.__all__]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"```text\n{_signature(name, value)}\n```\n"
    yield f"{inspect.getdoc(value) or ''}\n"
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ in envs.__all__]
        if bases:
            yield f"Inherits from {', '.join(f'[{base}](#{base.lower()})' for base in bases)}.\n"
        yield from _members(value)


def _members(owner: type) -> Iterator[str]:
    lines = []
    for name in _own_names(owner):
        found = inspect.getattr_static(owner, name)
        doc = inspect.getdoc(getattr(owner, name, None)) or inspect.getdoc(found) or ""
        function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        shown = _signature(name, function, is_member=True) if callable(function) else name
        lines.append(_item(shown, doc))
    if lines:
        yield "\n".join(lines) + "\n"


def _item(shown: str, doc: str) -> str:
    paragraphs = doc.split("\n\n")
    if len(paragraphs) == 1:
        return f"- `{shown}`: {' '.join(doc.split())}"
    return f"- `{shown}`:\n\n{textwrap.indent(doc, '  ')}\n"


def _own_names(owner: type) -> list[str]:
    """Public members that a class defines, or that a private base of ours defines for it, in their order there. What the
    public classes that it inherits from have is told there."""
    names: dict[str, None] = {}
    public = [base for base in owner.__mro__[1:] if base.__name__ in envs.__all__]
    told = {each for base in public for each in base.__mro__}
    for base in owner.__mro__:
        is_ours = base.__module__.startswith("rollout_worker.")
        if base is owner or (is_ours and base not in told):
            names |= dict.fromkeys(name for name in vars(base) if not name.startswith("_"))
    return list(names)


class _Plain:
    """An annotation that is shown as it is written."""

    def __init__(self, text: Any) -> None:
        self._text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return self._text.replace('"', "")


def _signature(name: str, value: Any, *, is_member: bool = False) -> str:
    function = value.__init__ if inspect.isclass(value) else value
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    parameters = [
        each if each.annotation is each.empty else each.replace(annotation=_Plain(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    is_silent = inspect.isclass(value) or signature.return_annotation is signature.empty
    returned = signature.empty if is_silent else _Plain(signature.return_annotation)
    text = f"{name}{signature.replace(parameters=parameters, return_annotation=returned)}"
    return (
        text
        if is_member or len(text) <= 110
        else _wrapped(name, parameters, "" if is_silent else f" -> {returned!r}")
    )


def _wrapped(name: str, parameters: list[inspect.Parameter], returned: str) -> str:
    lines: list[str] = []
    is_keyword_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
                lines.append("*,")
        lines.append(f"{parameter},")
    return f"{name}(\n{textwrap.indent(chr(10).join(lines), '    ')}\n){returned}"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
