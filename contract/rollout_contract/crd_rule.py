"""One validation rule of the custom resource. Used by the tables `crd_rules` and `crd_transitions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INVALID = "FieldValueInvalid"
FORBIDDEN = "FieldValueForbidden"
REQUIRED = "FieldValueRequired"
DUPLICATE = "FieldValueDuplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """An expression that must hold for the value at a place of the schema."""

    at: str
    """Path of the value that is `self`, list items as `workerGroups[]`; empty for the whole object."""
    rule: str
    message: str
    """What is wrong and what to write instead."""
    expression: str = ""
    """The message with the values in it, where they help; `message` stands in where it fails."""
    field: str = ""
    """Path, below `at`, of the field that a user would change."""
    reason: str = INVALID

    def to_schema(self) -> dict[str, Any]:
        """As an entry of `x-kubernetes-validations`."""
        entry = {"rule": " ".join(self.rule.split()), "message": self.message, "reason": self.reason}
        if self.expression:
            entry["messageExpression"] = " ".join(self.expression.split())
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry
