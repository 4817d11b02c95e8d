"""Finds the model that a place in a document belongs to, and builds what can be built of a document with faults.

Used by `spec_parse` alone: to say which fields are allowed, and to judge rules that tie fields together although other
fields are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from rollout_contract.faults import Location
from rollout_contract.fields import Model

M = TypeVar("M", bound=Model)


def _model_in(annotation: Any) -> type[Model] | None:
    """The model inside `X`, `X | None` or a tuple of X; None for scalars and free-form objects."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def field_at(root: type[Model], location: Location) -> FieldInfo | None:
    """The declared field at a place, list indices skipped; None where nothing is declared."""
    model: type[Model] | None = root
    field: FieldInfo | None = None
    for part in location:
        if isinstance(part, int):
            continue
        field = (
            None if model is None else next((f for f in model.model_fields.values() if f.alias == part), None)
        )
        if field is None:
            return None
        model = _model_in(field.annotation)
    return field


def fields_at(root: type[Model], location: Location) -> tuple[str, ...]:
    """Names, as a manifest writes them, of the fields of the object at a place."""
    field = field_at(root, location)
    model = _model_in(field.annotation) if field else (None if location else root)
    return tuple(f.alias for f in model.model_fields.values() if f.alias) if model else ()


def all_fields(root: type[Model], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every declared field as (its name, the path of the object that has it)."""
    for field in root.model_fields.values():
        alias = field.alias or ""
        yield alias, prefix
        nested = _model_in(field.annotation)
        if nested:
            yield from all_fields(nested, f"{prefix}.{alias}" if prefix else alias)


def build_what_is_valid(model: type[M], document: Mapping[str, Any], faulty: frozenset[Location]) -> M:
    """The model without its faulty fields: reading one of them raises AttributeError, all others are as usual.

    `faulty` holds places relative to `document`, which has been validated: what is not faulty is valid.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        below = frozenset(place[1:] for place in faulty if place and place[0] == alias)
        raw = document.get(alias)
        if not below:
            if raw is not None:
                form: Any = Annotated[field.annotation, "checked before", *field.metadata]
                values[name] = TypeAdapter(form).validate_python(raw)
        elif (part := _build_part(_model_in(field.annotation), raw, below)) is not None:
            values[name] = part
        else:
            unknown.append(name)
    built = cast(M, model.model_construct(**values))
    for name in unknown:
        built.__dict__.pop(name, None)
    return built


def _build_part(model: type[Model] | None, raw: object, faulty: frozenset[Location]) -> object:
    """What can be built of one field's value, None if nothing can."""
    if model is None or () in faulty:
        return None
    if isinstance(raw, dict):
        return build_what_is_valid(model, raw, faulty)
    if isinstance(raw, list) and all(isinstance(item, dict) for item in raw):
        return tuple(
            build_what_is_valid(model, item, frozenset(place[1:] for place in faulty if place[0] == index))
            for index, item in enumerate(raw)
        )
    return None
