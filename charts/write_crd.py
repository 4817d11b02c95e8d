"""Writes the custom resource's definition, as the contract makes it, into the files that are committed (`make crd`).

One for `kubectl apply -f`, one as a template of the chart. A test compares both with the contract.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rollout_contract.crd import crd_document, schema_hash

HERE = Path(__file__).parent
PLAIN = HERE / "rollout-crd.yaml"
TEMPLATE = HERE / "rollout" / "templates" / "crd.yaml"

_HEADER = "# Written by `make crd` from contract/rollout_contract; edits here are lost.\n"
_CONDITION = '{{- if eq (include "rollout.installsCrd" .) "true" }}\n'
_KEEP = {"helm.sh/resource-policy": "keep"}


def plain_text() -> str:
    """What `kubectl apply -f charts/rollout-crd.yaml` sends."""
    return _HEADER + _yaml(crd_document())


def template_text() -> str:
    """The same for the chart, which leaves it where it is when the release goes."""
    document = crd_document()
    document["metadata"]["annotations"] |= _KEEP
    text = _yaml(document)
    if "{{" in text:
        raise ValueError("the definition holds '{{', which the chart would take for a template")
    mark = f'{{{{- define "rollout.schemaHash" -}}}}{schema_hash()}{{{{- end -}}}}\n'
    return mark + _CONDITION + _HEADER + text + "{{- end }}\n"


def _yaml(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def main() -> None:
    for path, text in ((PLAIN, plain_text()), (TEMPLATE, template_text())):
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(HERE.parent)}: {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
