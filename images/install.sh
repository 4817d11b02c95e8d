#!/bin/sh
# Installs the project's wheel into /opt/rollout and leaves bytecode, the bill of materials and no build leftovers.
# Usage: install.sh PROGRAM
set -eu
program=$1
python=/opt/rollout/bin/python
python3 -m pip --python "$python" install -q --no-compile --no-deps --no-index /wheels/*.whl
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
# Modules that a library loads only when they are asked for are compiled then, in memory.
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/kubernetes/.*/(models|api)/(?!__init__|v1_object_meta|v1_owner_reference|v1_managed_fields_entry)|/torch/(testing|_inductor)/|/tests?/' \
  /opt/rollout/lib || true
version=$("$python" -c 'from importlib.metadata import version; print(version("rolloutjob"))')
"$python" sbom.py "rollout-$program" "$version" /usr/share/rollout/sbom.json
