"""The part of an object's metadata that the platform reads; Kubernetes' other fields are kept as they are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollout_contract import names
from rollout_contract.fields import OpenModel, Time, whole


class ObjectMeta(OpenModel):
    """Who the object is. Only `name` is written by people; the server, or the local run, fills in the rest."""

    name: Annotated[str, Field(pattern=whole(names.JOB_NAME.pattern), max_length=names.MAX_JOB_NAME)]
    """At most 40 characters, so that every pod name fits."""
    namespace: Annotated[str, Field(pattern=whole(names.NAMESPACE.pattern), max_length=63)] = "default"
    uid: str | None = None
    """Keeps a re-created job apart from its predecessor; unset until the object is stored."""
    generation: int | None = None
    """Counts the edits of the spec."""
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
