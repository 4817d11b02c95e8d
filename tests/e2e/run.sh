#!/bin/sh
# Everything that needs a cluster: builds the images, loads them, runs the tests. `make e2e` calls it.
#   KUBECONFIG  the cluster; without it the test cluster beside the checkout is started
#   LOADER      how images get there: kind, k3d, or a program (default: the test cluster's own)
#   E2E_TAG     tag of the images that the tests install; default e2e
# Arguments go to pytest.
set -eu
cd "$(dirname "$0")/../.."
TEST_CLUSTER=$(pwd)/../shared/cluster/cluster
export E2E_TAG="${E2E_TAG:-e2e}"
if [ -z "${KUBECONFIG:-}" ]; then
  KUBECONFIG=$("$TEST_CLUSTER" kubeconfig)
  export KUBECONFIG
  if ! kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1 && ! "$(dirname "$KUBECONFIG")/bin/kubectl" get --raw /readyz --request-timeout=5s >/dev/null 2>&1; then
    eval "$("$TEST_CLUSTER" up)"
  fi
fi
export PATH="$(dirname "$KUBECONFIG")/bin:$PATH"
kubectl get --raw /readyz --request-timeout=5s >/dev/null
if [ -z "${LOADER:-}" ]; then LOADER=$TEST_CLUSTER; fi
if [ "${LOADER#*/}" != "$LOADER" ]; then export E2E_REGISTRY="${E2E_REGISTRY:-localhost}"; fi
TAG=$E2E_TAG LOADER=$LOADER images/build.sh
exec .venv/bin/python -m pytest tests/e2e tests/chart -m "slow or not slow" "$@"
