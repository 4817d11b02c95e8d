"""What every model of the contract is made of: the base class, scalar types with their bounds, and why each bound.

Used by the models of spec and status only. Bounds are part of the API: they go into the CRD's schema as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from rollout_contract import names, quantities
from rollout_contract.faults import shown

MAX_FRAMES = 2**53 - 1
"""JSON readers that keep numbers as doubles are exact up to here."""
MAX_SEED = 2**63 - 1
"""Seeds are hashed as 64-bit integers; the API server keeps int64."""
MAX_FRAMES_PER_BATCH = 2**30
"""Even at one byte a frame, a larger batch would be over a GiB."""
MAX_ENVS_PER_WORKER = 65_536
"""Far above what one machine steps; keeps a mistyped number from starting processes until memory ends."""
MAX_PROCESSES = 4_096
"""More than the processors of any machine that a pod is put on."""
MAX_COLLECTORS = 1_024
"""Each is a process with a copy of the policy."""
MAX_REPLICAS = names.MAX_INDEX
"""Worker indices have at most four digits, so that pod names fit."""
MAX_ATTEMPTS = names.MAX_ATTEMPT
"""Attempts have at most four digits, so that pod names fit; no slot can fail more often."""
MAX_FAILURES = 1_000_000
"""More failures than any job survives."""
MAX_SECONDS = 315_360_000
"""Ten years: longer than any job; safe to add to any clock."""
MAX_WAIT_SECONDS = 86_400
"""A day: what a worker waits for in one go."""
MAX_BACKOFF_SECONDS = 300
"""The longest wait before a replacement; the first cannot be longer."""
MAX_VERSIONS = 1_000_000
"""Weight versions that a bound or a history may span."""
MAX_KEPT_VERSIONS = 1_000
"""Each is held in Redis' memory."""
MAX_SHARDS = 64
"""Each has counters of its own that are read together."""
MAX_BYTES = 2**50
"""A PiB: above any Redis server's memory."""
MIN_BYTES = 2**12
"""4Ki: a smaller frame has no room for its header."""
MIN_SHARED_MEMORY = 2**20
"""1Mi: a memory volume below it holds no block."""
MAX_FRAME_BYTES = 2**29
"""512Mi: Redis refuses a larger value."""
MAX_KWARGS_BYTES = 64 * 1024
"""Of one `kwargs` object as compact JSON; a worker gets its whole part of the contract in one variable of 96 KiB."""
MAX_ALL_KWARGS_BYTES = 80 * 1024
"""Of all `kwargs` of a job together: what that variable has room for beside the rest."""
MAX_KWARGS_KEYS = 256
"""Python has no limit on keyword arguments; the schema's cost budget needs one."""
MAX_ENTRYPOINT = 256
MAX_GROUPS = 8
"""Group numbers have three bits in a trajectory id."""
MAX_TASKS = 256
MAX_CONTAINERS = 16
MAX_RULES = 20
MAX_RULE_VALUES = 255
"""Exit codes that are failures: 1 to 255."""
MAX_RULE_ITEMS = 20
MAX_CONSUMER_GROUPS = 16
"""Each entry waits for the ack of every one."""
MAX_MESSAGE_BYTES = 1024
"""Of a condition's message."""

RESOURCE_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DATA_KEY = r"^[-._a-zA-Z0-9]+$"
HOST = r"^([a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?|[0-9a-fA-F]*:[0-9a-fA-F:.]+)$"
CONSUMER_GROUP = r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$"
CAMEL_CASE = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
CONDITION_TYPE = r"^([-a-zA-Z0-9.]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
MANAGER = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[-._a-zA-Z0-9]+$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"


def whole(pattern: str) -> str:
    """A pattern of `names`, which is used with `fullmatch`, as the schema needs it: anchored, and ASCII everywhere."""
    ascii_only = pattern.replace(r"\w", "[A-Za-z0-9_]")
    return f"^({ascii_only})$"


PATTERN_MEANINGS = {
    RESOURCE_NAME: "a name of lower-case letters, digits, - and . that starts and ends with a letter or digit",
    LABEL_NAME: "a name of lower-case letters, digits and - that starts and ends with a letter or digit",
    DATA_KEY: "a key of letters, digits, -, _ and .",
    HOST: "a host name or an address, without scheme, user and port",
    CONSUMER_GROUP: "a name of letters, digits, -, _ and . that starts and ends with a letter or digit",
    CAMEL_CASE: "one word, as reasons are written (OOMKilled, Evicted)",
    CONDITION_TYPE: "the type of a pod condition, such as DisruptionTarget",
    MANAGER: f"a domain and a name, such as {names.OPERATOR_NAME}",
    TIME: "a time in RFC 3339, such as 2026-01-01T10:00:00Z",
    whole(
        names.JOB_NAME.pattern
    ): "a name of at most 40 lower-case letters, digits and - (RFC 1035) that starts with "
    "a letter and ends with a letter or digit",
    whole(
        names.NAMESPACE.pattern
    ): "a name of at most 63 lower-case letters, digits and - (RFC 1123) that starts and "
    "ends with a letter or digit",
    whole(
        names.WORKER_GROUP_NAME.pattern
    ): "a name of at most 12 lower-case letters and digits, without -, that starts with a letter",
    whole(names.ENTRYPOINT.pattern): "module:attribute, such as my_envs.cheetah:make_env",
}
"""What a pattern means in words, for messages."""


class Model(BaseModel):
    """Base of every model: camelCase outside, snake_case inside, unknown fields refused, no conversions, immutable.

    A field that is null counts as not written, as the API server treats it.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {key: value for key, value in data.items() if value is not None}
        return data

    def to_document(self) -> dict[str, Any]:
        """The YAML shape: camelCase keys, defaults written out, unset fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OpenModel(Model):
    """A model that declares what we rely on and keeps every other field as it is."""

    model_config = ConfigDict(extra="allow")


def _quantity(value: object) -> str | int:
    try:
        quantities.parse(value)  # type: ignore[arg-type]  # it refuses other types itself
    except ValueError as error:
        raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from error
    return value  # type: ignore[return-value]


QUANTITY_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer"},
        {"type": "string", "pattern": quantities.PATTERN, "maxLength": quantities.MAX_LENGTH},
    ],
    "x-kubernetes-int-or-string": True,
}
Quantity = Annotated[str | int, PlainValidator(_quantity), WithJsonSchema(QUANTITY_SCHEMA)]
"""Int or string, kept as written; `quantities.parse` gives its value."""


def _size_between(low: int, high: int) -> AfterValidator:
    def check(value: str | int) -> str | int:
        if not low <= quantities.parse(value) <= high:
            limits = f"{quantities.format_bytes(low)} to {quantities.format_bytes(high)}"
            raise PydanticCustomError(
                "size", "{reason}", {"reason": f"{shown(value)} is out of range: write a size of {limits}"}
            )
        return value

    return AfterValidator(check)


Size = Annotated[Quantity, _size_between(MIN_BYTES, MAX_BYTES)]
FrameSize = Annotated[Quantity, _size_between(MIN_BYTES, MAX_FRAME_BYTES)]
SharedMemorySize = Annotated[Quantity, _size_between(MIN_SHARED_MEMORY, MAX_BYTES)]


def _amount(value: str | int) -> str | int:
    if quantities.parse(value) < 0:
        reason = f"{shown(value)} is negative: write 0 or more"
        raise PydanticCustomError("amount", "{reason}", {"reason": reason})
    return value


Amount = Annotated[Quantity, AfterValidator(_amount)]
"""Of a resource that a container asks for or may use."""


def _ratio(value: str | int) -> str | int:
    if not 0 < quantities.parse(value) <= MAX_VERSIONS:
        raise PydanticCustomError(
            "ratio", "{reason}", {"reason": f"{shown(value)} is out of range: write a number over 0"}
        )
    return value


Ratio = Annotated[Quantity, AfterValidator(_ratio)]

Item = TypeVar("Item")
Items = Annotated[tuple[Item, ...], Field(strict=False)]
"""A list of the document, kept as a tuple."""

Name = Annotated[str, Field(pattern=RESOURCE_NAME, max_length=253)]
"""Of another object in the namespace."""
LabelName = Annotated[str, Field(pattern=LABEL_NAME, max_length=63)]
GroupName = Annotated[
    str, Field(pattern=whole(names.WORKER_GROUP_NAME.pattern), max_length=names.MAX_GROUP_NAME)
]
Entrypoint = Annotated[str, Field(pattern=whole(names.ENTRYPOINT.pattern), max_length=MAX_ENTRYPOINT)]
Kwargs = Annotated[dict[str, Any], Field(max_length=MAX_KWARGS_KEYS)]
"""Keyword arguments: a JSON object; `parse_manifest` has checked that everything inside is JSON."""
Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
WaitSeconds = Annotated[int, Field(ge=1, le=MAX_WAIT_SECONDS)]
Frames = Annotated[int, Field(ge=1, le=MAX_FRAMES)]
Time = Annotated[str, Field(pattern=TIME)]
"""RFC 3339; what we write ourselves is UTC with whole seconds."""
