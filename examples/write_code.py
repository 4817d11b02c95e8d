"""Writes the ConfigMaps that bring the examples' Python files to a cluster: `code.yaml` beside them (`make code`).

A local run takes the files themselves; a cluster's pods get them mounted. A test compares both.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
FILES = {
    "cartpole": ("policy.py", "learner.py"),
    "custom_env": ("reach.py", "policy.py", "reader.py"),
}
NAMES = {"cartpole": "cartpole-code", "custom_env": "reach-code"}
_HEAD = """# Written by `make code` from the files beside it; edits here are lost.
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
"""


def code_yaml(example: str) -> str:
    """The ConfigMap of an example, its files as block texts."""
    parts = [_HEAD.format(name=NAMES[example])]
    for name in FILES[example]:
        lines = (HERE / example / name).read_text(encoding="utf-8").splitlines()
        parts.append(f"  {name}: |\n" + "".join(f"    {line}".rstrip() + "\n" for line in lines))
    return "".join(parts)


def main() -> None:
    for example in FILES:
        path = HERE / example / "code.yaml"
        path.write_text(code_yaml(example), encoding="utf-8")
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    main()
