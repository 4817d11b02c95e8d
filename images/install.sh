#!/bin/sh
# Installs what PROGRAM needs beyond what /opt/rollout has (the project's wheel, and with it other requirements), with bytecode
# and the bill of materials, and puts the files that this adds into FOLDER.
# Usage: install.sh PROGRAM FOLDER
set -eu
program=$1 folder=$2
python=/opt/rollout/bin/python
touch before
if [ "$program" = learner ]; then
  python3 requirements_of.py pyproject.toml learner > needed.txt
  "$python" -m pip install -q --no-compile -c constraints.txt -r needed.txt
else
  python3 -m pip --python "$python" install -q --no-compile --no-deps --no-index /wheels/*.whl
fi
# The command line is no part of these images.
rm -f /opt/rollout/bin/rolloutctl
if [ "$program" = operator ] || [ "$program" = api ]; then
  "$python" - <<'PY'
import shutil
import sysconfig
from pathlib import Path

site = Path(sysconfig.get_path("purelib"))
for package in ("rollout_cli", "rollout_worker"):
    shutil.rmtree(site / package, ignore_errors=True)
PY
fi
find /opt/rollout -cnewer before -name '*.py' > added.txt
sh compile.sh -i added.txt
version=$("$python" -c 'from importlib.metadata import version; print(version("rolloutjob"))')
"$python" sbom.py "rollout-$program" "$version" /usr/share/rollout/sbom.json
mkdir -p "$folder"
before=$PWD/before
(cd / && find opt/rollout usr/share/rollout -cnewer "$before" ! -type d | tar -cf - -T -) | tar -xf - -C "$folder"
