"""Arguments of the environment: where they come from, and what a text that is none is answered with."""

from __future__ import annotations

import pytest

from rollout_contract import podenv
from rollout_contract.errors import ConfigurationError
from rollout_contract.spec import EnvSpec, KeyRef
from rollout_contract.spec_models import KwargsSource
from rollout_worker.env_kwargs import env_kwargs


class Document:
    """As much of a worker's document as is asked for."""

    def __init__(self, **env):
        self.env = EnvSpec(entrypoint="envs:make", **env)


FROM_MAP = Document(kwargs_from=KwargsSource(config_map_key_ref=KeyRef(name="cfg", key="env.yaml")))


@pytest.mark.parametrize(
    ("document", "environ", "kwargs"),
    [
        pytest.param(Document(), {}, {}, id="none"),
        pytest.param(Document(kwargs={"a": 1}), {podenv.ENV_KWARGS: "{}"}, {"a": 1}, id="the spec's own"),
        pytest.param(FROM_MAP, {podenv.ENV_KWARGS: '{"x": 1.0}'}, {"x": 1.0}, id="json"),
        pytest.param(FROM_MAP, {podenv.ENV_KWARGS: "x: 1.0\ny:\n  - a\n"}, {"x": 1.0, "y": ["a"]}, id="yaml"),
        pytest.param(
            FROM_MAP,
            {podenv.ENV_KWARGS: "a: &a {k: 1}\nb: &b {l: 2}\nc:\n  <<: *a\n  k: 3\n"},
            {"a": {"k": 1}, "b": {"l": 2}, "c": {"k": 3}},
            id="merged",
        ),
        pytest.param(FROM_MAP, {podenv.ENV_KWARGS: ""}, {}, id="empty"),
    ],
)
def test_arguments(document, environ, kwargs):
    found = env_kwargs(document, environ)

    assert found == kwargs
    assert [type(value) for value in found.values()] == [type(value) for value in kwargs.values()]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param({}, "not set", id="missing"),
        pytest.param({podenv.ENV_KWARGS: "- a"}, "mapping", id="a list"),
        pytest.param({podenv.ENV_KWARGS: "1: a"}, "mapping", id="no names"),
        pytest.param({podenv.ENV_KWARGS: "a: [1"}, "neither JSON nor YAML", id="broken"),
        pytest.param(
            {podenv.ENV_KWARGS: '{"x": 1, "y": {"a": 1, "a": 2}}'}, "'a' stands twice", id="twice, JSON"
        ),
        pytest.param(
            {podenv.ENV_KWARGS: "x: 1\ny: 2\nx: 3\n"}, "'x' stands in line 1 and in line 3", id="twice"
        ),
        pytest.param(
            {podenv.ENV_KWARGS: "y:\n  {a: 1, a: 2}\n"}, "'a' stands in line 2 and", id="twice, inside"
        ),
        pytest.param({podenv.ENV_KWARGS: "!!python/object/apply:os.system [ls]"}, "neither", id="code"),
    ],
)
def test_a_text_that_is_none_names_its_source(environ, words):
    with pytest.raises(ConfigurationError, match=words) as raised:
        env_kwargs(FROM_MAP, environ)

    assert "key env.yaml of ConfigMap cfg" in str(raised.value)
