"""What all models share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Age = Annotated[
    float, Field(ge=0, description="Seconds since this part was read, or last changed at its source.")
]


def examples(example: dict[str, Any]) -> ConfigDict:
    """The configuration of a model with this example, in its outer spelling."""
    return ConfigDict(json_schema_extra={"examples": [example]})


class ApiModel(BaseModel):
    """Base: camelCase outside, snake_case inside; only fields that are declared are taken."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )
