"""Finishes the schema that the framework makes of the routes, so that it says what callers really get.

Called by `create_app`. Errors are problem+json and nothing else; everything but the public routes wants a token; the
job has an example.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from rollout_api.errors import MEDIA_TYPE, PROBLEM_SCHEMA
from rollout_api.middleware import PUBLIC
from rollout_api.models import NewSeed

_FRAMEWORK_ERRORS: Final = ("HTTPValidationError", "ValidationError")

JOB_EXAMPLE: Final[dict[str, Any]] = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "cartpole"},
    "spec": {
        "env": {
            "entrypoint": "rollout_worker.envs:GymEnv",
            "kwargs": {"env_name": "CartPole-v1"},
            "envsPerWorker": 16,
        },
        "policy": {"entrypoint": "policy:make_policy"},
        "collector": {"framesPerBatch": 4096, "totalFrames": 1000000},
        "replicas": 2,
    },
}
"""The smallest useful manifest."""


def install(app: FastAPI) -> None:
    """Make `app.openapi()` give the finished schema, made once."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = finished(make())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def finished(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with problems, security and examples; changed in place and given back."""
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token of the run, or of the cluster.",
        }
    }
    schema["security"] = [{"token": []}]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _finish_operation(operation, is_public=(method.upper(), path) in PUBLIC)
    schemas = components["schemas"]
    for name in _FRAMEWORK_ERRORS:
        schemas.pop(name, None)
    schemas["RolloutJob"]["examples"] = [JOB_EXAMPLE]
    schemas["NewSeed"] = NewSeed.model_json_schema()
    components["schemas"] = dict(sorted(schemas.items()))
    return schema


def _finish_operation(operation: dict[str, Any], *, is_public: bool) -> None:
    responses: dict[str, Any] = operation["responses"]
    for response in responses.values():
        if MEDIA_TYPE in response.get("content", {}):
            response["content"].pop("application/json", None)
    responses["default"] = {
        "description": "Any other problem",
        "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}},
    }
    if is_public:
        operation["security"] = []
