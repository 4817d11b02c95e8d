"""What the server refuses of an edit: the table of `mutability`, said in CEL. Used by `crd`.

Every rule here compares with the stored object. All of them stand at places that are always there (`spec`, or the
whole object), because a rule at an optional field is skipped when the field is added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout_contract.crd_rule import FORBIDDEN, CelRule
from rollout_contract.mutability import (
    AFTER_THE_END,
    GROUP,
    RECREATE,
    SPEC,
    VERSIONS_FIXED,
    Change,
    only_suspended,
)

Schema = dict[str, Any]

_GROUPS = "workerGroups"
_FIXED = (
    f"cannot be changed with determinism Strict, data are shared out over the workers in advance. {RECREATE}"
)


def transition_rules(spec: Schema) -> Iterator[CelRule]:
    """The rules of edits, for the schema of `spec`, which says what may be unset."""
    for path, change in SPEC.items():
        yield from _field_rule(spec, path, change)
    yield from _group_rules(spec["properties"][_GROUPS]["items"])
    yield from _strict_rules()
    yield _after_the_end(spec)


def _field_rule(spec: Schema, path: str, change: Change) -> Iterator[CelRule]:
    same = _equal("self", "oldSelf", path, is_optional=_is_optional(spec, path))
    match change:
        case Change.NEVER:
            yield _edit(path, same, f"cannot be changed. {RECREATE}")
        case Change.SUSPENDED:
            yield _edit(path, f"oldSelf.suspend || ({same})", only_suspended("it can be changed"))
        case Change.GROWS:
            yield _edit(
                path,
                f"!has(self.{path}) || (has(oldSelf.{path}) && self.{path} >= oldSelf.{path})",
                "may only grow or be unset. To end the job earlier, ask for it to complete.",
            )
        case Change.ALWAYS:
            pass


def _group_rules(group: Schema) -> Iterator[CelRule]:
    yield _edit(
        _GROUPS,
        "oldSelf.suspend || self.workerGroups.all(g, oldSelf.workerGroups.exists(o, o.name == g.name))",
        only_suspended("a worker group can be added"),
    )
    yield _edit(
        _GROUPS,
        "oldSelf.suspend || oldSelf.workerGroups.all(o, self.workerGroups.exists(g, g.name == o.name))",
        only_suspended("a worker group can be removed or renamed"),
    )
    for name, change in GROUP.items():
        if change is Change.SUSPENDED:
            same = _equal("g", "o", name, is_optional=_is_optional(group, name))
            yield _edit(
                _GROUPS,
                f"oldSelf.suspend || {_each_group(same)}",
                only_suspended(f"{name} of a worker group can be changed"),
            )


def _strict_rules() -> Iterator[CelRule]:
    replicas = (
        "g.elastic == o.elastic && (has(g.replicas) ? g.replicas : 1) == (has(o.replicas) ? o.replicas : 1)"
    )
    desired = f"{_desired('self', 'g')} == {_desired('oldSelf', 'o')}"
    rules = {
        "replicas": "self.replicas == oldSelf.replicas",
        _GROUPS: "self.workerGroups.size() == oldSelf.workerGroups.size() "
        "&& self.workerGroups.all(g, oldSelf.workerGroups.exists(o, o.name == g.name)) "
        f"&& {_each_group(f'{replicas} && {desired}')}",
    }
    for field, rule in rules.items():
        yield _edit(field, f"self.determinism != 'Strict' || ({rule})", _FIXED)
    staleness = _equal("self", "oldSelf", "weights.maxStaleness", is_optional=True)
    yield _edit("weights.maxStaleness", f"self.determinism != 'Strict' || ({staleness})", VERSIONS_FIXED)
    total = _equal("self", "oldSelf", "collector.totalFrames", is_optional=True)
    yield _edit(
        "collector.totalFrames",
        f"self.determinism != 'Strict' || oldSelf.suspend || ({total})",
        only_suspended("with determinism Strict it can be changed"),
    )


def _after_the_end(spec: Schema) -> CelRule:
    """Parts of free-form values that no rule can see (of pod templates) can still be written; nothing looks at them."""
    ended = (
        "has(oldSelf.status) && has(oldSelf.status.conditions) && oldSelf.status.conditions"
        ".exists(c, c.type in ['Complete', 'Failed'] && c.status == 'True')"
    )
    others = [name for name in spec["properties"] if name != AFTER_THE_END]
    same = " && ".join(
        f"({_equal('self.spec', 'oldSelf.spec', name, is_optional=_is_optional(spec, name))})"
        for name in others
    )
    return CelRule(
        at="",
        rule=f"!({ended}) || ({same})",
        message=f"cannot be changed: the job has ended, only {AFTER_THE_END} and metadata can be. {RECREATE}",
        field="spec",
        reason=FORBIDDEN,
    )


def _edit(field: str, rule: str, message: str) -> CelRule:
    return CelRule(at="spec", rule=rule, message=message, field=field, reason=FORBIDDEN)


def _equal(new: str, old: str, path: str, *, is_optional: bool) -> str:
    """That a field is the same, written so that its cost can be estimated."""
    left, right = f"{new}.{path}", f"{old}.{path}"
    if not is_optional:
        return f"{left} == {right}"
    return f"has({left}) ? has({right}) && {left} == {right} : !has({right})"


def _each_group(same: str) -> str:
    """That something holds for each group `g` that was there before as `o`."""
    return f"self.workerGroups.all(g, oldSelf.workerGroups.all(o, o.name != g.name || ({same})))"


def _desired(spec: str, group: str) -> str:
    """Workers of a group within its bounds, as `desired_replicas` counts them."""
    wanted = f"({group}.elastic ? {spec}.replicas : has({group}.replicas) ? {group}.replicas : 1)"
    least = f"({wanted} < {group}.minReplicas ? {group}.minReplicas : {wanted})"
    return f"(has({group}.maxReplicas) && {group}.maxReplicas < {least} ? {group}.maxReplicas : {least})"


def _is_optional(schema: Schema, path: str) -> bool:
    """Whether a stored object may lack the field: it is not required and has no default."""
    node, is_required = schema, False
    for key in path.split("."):
        is_required = key in node.get("required", ())
        node = node["properties"][key]
    return not is_required and "default" not in node
