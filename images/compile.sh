#!/bin/sh
# Writes bytecode that does not depend on file times, because the root file system is read-only where it runs.
# Usage: compile.sh FOLDER, or compile.sh -i FILE with a list of files
# Modules that a library loads only when they are asked for are compiled then, in memory.
set -eu
/opt/rollout/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/kubernetes/.*/(models|api)/(?!__init__|v1_object_meta|v1_owner_reference|v1_managed_fields_entry)|/torch/(testing|_inductor)/|/tests?/' "$@" || true
