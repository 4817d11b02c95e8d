"""The examples' manifests for clusters: what stands in them fits the files beside them, and the contract."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from rollout_contract.spec import parse_manifest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def write_code():
    spec = importlib.util.spec_from_file_location("write_code", EXAMPLES / "write_code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["cartpole", "custom_env"])
def test_the_config_map_holds_the_files_beside_it(example):
    text = (EXAMPLES / example / "code.yaml").read_text()
    assert text == write_code().code_yaml(example), "run `make code`"
    data = yaml.safe_load(text)["data"]
    assert data == {name: (EXAMPLES / example / name).read_text() for name in data}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_job_is_one_that_the_contract_takes(path):
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    assert documents
    for document in documents:
        if document["kind"] == "RolloutJob":
            assert parse_manifest(document).metadata.name == document["metadata"]["name"]


@pytest.mark.parametrize(("example", "name"), [("cartpole", "learner"), ("custom_env", "reader")])
def test_a_learner_reads_the_job_beside_it_and_is_restricted(example, name):
    job = yaml.safe_load((EXAMPLES / example / "job.yaml").read_text())
    learner = yaml.safe_load((EXAMPLES / example / f"{name}.yaml").read_text())
    pod = learner["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["ROLLOUT_JOB"] == f"$(NAMESPACE)/{job['metadata']['name']}"
    assert pod["metadata"]["labels"]["rolloutjob.dev/redis-client"] == "true"
    assert container["args"] == [f"/code/{name}.py"]
    (code,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "code"]
    assert code["configMap"]["name"] == job["spec"]["code"]["configMapRef"]["name"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_learners_name_the_image_of_this_version():
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for path in (EXAMPLES / "cartpole" / "learner.yaml", EXAMPLES / "custom_env" / "reader.yaml"):
        assert f"image: rollout-learner:{version}" in path.read_text()
