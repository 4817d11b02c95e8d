"""Turns a manifest into a RolloutJob, or into the list of everything that is wrong with it.

Called through `rollout_contract.spec` by the command line, the gateway and the operator, so that a manifest is judged
the same wherever it goes. Pure; reading YAML, with its own faults (duplicate keys, tabs), is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rollout_contract.errors import Fault, SpecError
from rollout_contract.faults import Location, did_you_mean, nearest, path_of, safe_value, shown
from rollout_contract.fields import PATTERN_MEANINGS
from rollout_contract.json_check import DocumentTooLarge, json_faults
from rollout_contract.model_walk import all_fields, build_what_is_valid, field_at, fields_at
from rollout_contract.names import API_VERSION, KIND
from rollout_contract.spec_models import RolloutJob, RolloutJobSpec
from rollout_contract.spec_rules import faults_of_rules


def parse_manifest(document: object) -> RolloutJob:
    """The job that a manifest (mappings, lists, scalars; as YAML or JSON gives them) describes.

    Raises SpecError, and nothing else, for whatever is no valid RolloutJob; it lists every fault.
    """
    if not isinstance(document, dict):
        what = "is empty" if document is None else f"holds {shown(document)}"
        message = f"a manifest is a mapping with apiVersion: {API_VERSION}, kind: {KIND}, metadata and spec; this {what}"
        raise SpecError([Fault(path="", value=document, message=message)])
    try:
        no_json = json_faults(document)
    except DocumentTooLarge as error:
        raise SpecError([error.fault]) from error
    faults = {_key(location): fault for location, fault in no_json.items()}
    faulty = set(no_json)
    try:
        job = RolloutJob.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        for location, fault in _schema_faults(error):
            faults.setdefault(_key(location), fault)
            faulty.add(location)
    else:
        if not faulty:
            return _judged(job)
    raise SpecError([*faults.values(), *_rules_where_possible(document, frozenset(faulty))])


def _judged(job: RolloutJob) -> RolloutJob:
    faults = list(faults_of_rules(job.spec, partial=False))
    if faults:
        raise SpecError(faults)
    return job


def _key(location: Location) -> Location:
    """Equal for one place, however the two checks spell a key that is no text."""
    return tuple(str(part) for part in location)


def _schema_faults(error: ValidationError) -> list[tuple[Location, Fault]]:
    faults = []
    for details in error.errors(include_url=False):
        location = details["loc"]
        if _is_said_elsewhere(details):
            continue
        message = _MESSAGES.get(details["type"], _as_pydantic_says)(details)
        value = None if details["type"] == "missing" else safe_value(location, details["input"])
        faults.append((location, Fault(path=path_of(location), value=value, message=message)))
    return faults


def _is_said_elsewhere(details: ErrorDetails) -> bool:
    """What is no text or no Unicode was found before; a list with faulty items is also called too short by the good ones."""
    if details["type"] in ("invalid_key", "string_unicode") or details["loc"][-1:] == ("[key]",):
        return True
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def _rules_where_possible(document: Mapping[str, Any], faulty: frozenset[Location]) -> list[Fault]:
    if not isinstance(document.get("spec"), dict) or ("spec",) in faulty:
        return []
    below = frozenset(location[1:] for location in faulty if location[:1] == ("spec",))
    spec = build_what_is_valid(RolloutJobSpec, document["spec"], below)
    return list(faults_of_rules(spec, partial=True))


_FIXED: Mapping[Location, str] = {("apiVersion",): API_VERSION, ("kind",): KIND}


def _missing(details: ErrorDetails) -> str:
    fixed = _FIXED.get(details["loc"])
    if fixed:
        return f"required value: write {fixed}"
    field = field_at(RolloutJob, details["loc"])
    meaning = (field.description or "") if field else ""
    return f"required value is missing{': ' + meaning if meaning else ''}"


def _unknown_field(details: ErrorDetails) -> str:
    *parent, key = details["loc"]
    allowed = fields_at(RolloutJob, tuple(parent))
    meant = nearest(str(key), allowed)
    if meant:
        return f"unknown field. Did you mean {meant}?"
    homes = [home for name, home in all_fields(RolloutJob) if name == key and home.startswith("spec")]
    if homes:
        return f"unknown field. It belongs under {homes[0]}."
    return f"unknown field. Allowed here: {', '.join(allowed)}"


def _whole_number(details: ErrorDetails) -> str:
    value = details["input"]
    hint = ""
    if isinstance(value, float) and value.is_integer():
        hint = f": write {int(value)}"
    elif isinstance(value, str) and value.strip().isdecimal():
        hint = f": write {shown(int(value[:20]))} without quotes"
    return f"must be a whole number, not {shown(value)}{hint}"


def _text(details: ErrorDetails) -> str:
    value = details["input"]
    hint = "" if isinstance(value, dict | list) else ": put it in quotes"
    return f"must be text, not {shown(value)}{hint}"


def _choice(details: ErrorDetails) -> str:
    location, value = details["loc"], details["input"]
    if location in _FIXED:
        return f"{shown(value)} is not supported: write {_FIXED[location]}"
    expected = str(details["ctx"]["expected"]).replace(" or ", ", ").replace("'", "")
    values = expected.split(", ")
    return f"{shown(value)} is not supported. Supported values: {', '.join(values)}.{did_you_mean(value, values)}"


def _pattern(details: ErrorDetails) -> str:
    pattern = details["ctx"]["pattern"]
    return f"{shown(details['input'])} should be {PATTERN_MEANINGS[pattern]}"


def _must_be(what: str) -> Callable[[ErrorDetails], str]:
    return lambda details: f"must be {what}, not {shown(details['input'])}"


def _bound(words: str, key: str) -> Callable[[ErrorDetails], str]:
    return lambda details: f"{shown(details['input'])} should be {words} {details['ctx'][key]}"


def _too_many(details: ErrorDetails) -> str:
    return f"has {len(details['input'])} items, should have at most {details['ctx']['max_length']}"


def _too_few(details: ErrorDetails) -> str:
    return f"has {len(details['input'])} items, should have at least {details['ctx']['min_length']}"


def _too_long(details: ErrorDetails) -> str:
    limit = details["ctx"]["max_length"]
    return f"{shown(details['input'])} has {len(details['input'])} characters, should be at most {limit} long"


def _as_pydantic_says(details: ErrorDetails) -> str:
    return details["msg"]


_MESSAGES: dict[str, Callable[[ErrorDetails], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_field,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "string_type": _text,
    "bool_type": _must_be("true or false"),
    "dict_type": _must_be("a mapping"),
    "model_type": _must_be("a mapping"),
    "tuple_type": _must_be("a list"),
    "enum": _choice,
    "literal_error": _choice,
    "string_pattern_mismatch": _pattern,
    "greater_than_equal": _bound("greater than or equal to", "ge"),
    "less_than_equal": _bound("less than or equal to", "le"),
    "too_long": _too_many,
    "too_short": _too_few,
    "string_too_long": _too_long,
    "string_too_short": lambda details: "must not be empty",
}
