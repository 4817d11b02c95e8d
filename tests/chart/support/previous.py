"""The version before this one, for tests of upgrades: as long as none was released, this one without one field.

Chart, definition and operator are really without it: the operator runs with a contract of its own, put before the image's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from installed import CHART, ROOT, Commands, Document, Refused, merged

FIELD = "resetAtEachBatch"
"""Of `spec.collector`: what the previous version does not have."""
VERSION = "0.0.9"
CONTRACT_MOUNT = "/opt/previous"


@dataclass(frozen=True)
class Previous:
    """`chart` is a folder for Helm; `definition` the plain one; `contract` a ConfigMap for the operator."""

    chart: Path
    definition: Document
    contract: Document

    def values(self, values: Document) -> Document:
        """Values of this version, for the previous one's operator."""
        items = [{"key": key, "path": _path(key)} for key in self.contract["data"]]
        source = {"name": self.contract["metadata"]["name"], "items": items}
        volume = {"name": "previous", "configMap": source}
        mount = {"name": "previous", "mountPath": f"{CONTRACT_MOUNT}/rollout_contract"}
        operator = {
            "env": [{"name": "PYTHONPATH", "value": CONTRACT_MOUNT}],
            "volumes": [volume],
            "volumeMounts": [mount],
        }
        return merged(values, {"operator": operator})


def make(folder: Path) -> Previous:
    """Write it into a folder."""
    contract = folder / "rollout_contract"
    shutil.copytree(
        ROOT / "contract" / "rollout_contract", contract, ignore=shutil.ignore_patterns("__pycache__")
    )
    _drop(contract / "spec_models.py", "reset_at_each_batch")
    _drop(contract / "mutability.py", FIELD)
    plain, template = _definition(folder)
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "crd.yaml").write_text(template, encoding="utf-8")
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": VERSION, "appVersion": VERSION}))
    files = {
        _key(path.relative_to(contract)): path.read_text(encoding="utf-8") for path in contract.rglob("*.py")
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "previous"}, "data": files}
    return Previous(chart, yaml.safe_load(plain), config)


def _key(path: Path) -> str:
    """The name of a file's text in a ConfigMap, where none may have a slash."""
    return "--".join(path.parts)


def _path(key: str) -> str:
    return key.replace("--", "/")


def _drop(path: Path, word: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if word not in line]
    assert len(kept) == len(lines) - 1, f"{path.name} speaks of {word} in {len(lines) - len(kept)} lines"
    path.write_text("".join(kept), encoding="utf-8")


def _definition(folder: Path) -> tuple[str, str]:
    """The definition as that contract makes it: the plain file and the chart's template."""
    script = "import json, write_crd\nprint(json.dumps([write_crd.plain_text(), write_crd.template_text()]))"
    path = os.pathsep.join([str(folder), str(ROOT / "charts")])
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    plain, template = json.loads(done.stdout)
    assert FIELD not in plain + template
    return plain, template


def put_definition(home: Commands, release: str, definition: Document) -> None:
    """The older definition on the cluster, as an installation of that release would have left it.

    There is one for the whole cluster, so it is not taken away first, and nothing but Helm may be known as its writer.
    """
    metadata = definition["metadata"]
    ours = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": home.namespace}
    document = definition | {
        "metadata": metadata
        | {
            "annotations": metadata["annotations"] | ours | {"helm.sh/resource-policy": "keep"},
            "labels": metadata["labels"] | {"app.kubernetes.io/managed-by": "Helm"},
        }
    }
    text = json.dumps(document)
    home("replace", "-f", "-", text=text)
    home("apply", "--server-side", "--force-conflicts", "--field-manager=helm", "-f", "-", text=text)
    _leave_one_manager(home, metadata["name"])


def _leave_one_manager(home: Commands, name: str) -> None:
    for _ in range(5):  # the server itself writes to the status meanwhile
        found = home.get("customresourcedefinition", name, "--show-managed-fields")["metadata"]
        kept = [m for m in found["managedFields"] if m["manager"] == "helm" and m["operation"] == "Apply"]
        change = {"metadata": {"resourceVersion": found["resourceVersion"], "managedFields": kept}}
        try:
            home("patch", "customresourcedefinition", name, "--type=merge", "--patch", json.dumps(change))
        except Refused as error:
            if "modified" not in str(error):
                raise
        else:
            return
    raise AssertionError(f"{name} changes all the time")
