#!/bin/sh
# Everything that needs a cluster: builds the images, loads them, runs the tests. `make e2e` calls it.
#   KUBECONFIG    the cluster. Without it the test cluster beside the checkout, which is started if it does not run, and
#                 taken down at the end if it was started here
#   LOADER        how images get there: kind, k3d, push, or a program (default: the test cluster's own)
#   E2E_TAG       tag of the images (default: the project's version, which the README installs)
#   E2E_REGISTRY  what stands before their names (default: localhost with a program as LOADER, as it names them so)
#   E2E_BUILD=no  takes images that are there already
#   E2E_JOBS      tests at a time (default 4)
#   E2E_SHORT=yes stops after the README and the definition's rules
#   E2E_AGAIN=yes runs what failed once more and alone, and fails only where that fails too
#   SOAK=1        all rounds of the fault tests
# With arguments: pytest with these, after the same preparations. Every test that is skipped is listed with its reason.
set -eu
cd "$(dirname "$0")/../.."
CUT=rolloutjob.dev/cut-off
TEST_CLUSTER=$(cd .. && pwd)/shared/cluster/cluster
PYTEST=".venv/bin/python -m pytest --durations=10 --durations-min=10"

say() { printf '\n== e2e, %s s: %s\n' "$(($(date +%s) - BEGAN))" "$*"; }
answers() { kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1; }
BEGAN=$(date +%s)

if [ -z "${KUBECONFIG:-}" ]; then
  if [ ! -x "$TEST_CLUSTER" ]; then
    echo "tests/e2e/run.sh: set KUBECONFIG; the test cluster would be $TEST_CLUSTER, which is not there" >&2
    exit 2
  fi
  KUBECONFIG=$("$TEST_CLUSTER" kubeconfig)
  export KUBECONFIG PATH="$(dirname "$KUBECONFIG")/bin:$PATH"
  if ! answers; then
    say "starting the test cluster"
    AT_END="$TEST_CLUSTER down"
    trap '$AT_END' EXIT
    trap 'exit 130' INT TERM
    eval "$("$TEST_CLUSTER" up --nodes 3 --gpus 2)"
  fi
fi
if ! answers; then
  echo "tests/e2e/run.sh: no answer from the cluster of KUBECONFIG=$KUBECONFIG (or no kubectl on the PATH)" >&2
  exit 2
fi

if [ -x "$TEST_CLUSTER" ] && [ "$KUBECONFIG" = "$("$TEST_CLUSTER" kubeconfig)" ]; then
  LOADER=${LOADER:-$TEST_CLUSTER}
  export ROLLOUT_TEST_CLUSTER="$TEST_CLUSTER" E2E_AUDIT_LOG="${E2E_AUDIT_LOG:-$(dirname "$KUBECONFIG")/log/audit.log}"
  # The third node is cut off by a test, and has nobody else's pods.
  ! kubectl get node node-3 >/dev/null 2>&1 || kubectl taint node node-3 --overwrite "$CUT=:NoSchedule" >/dev/null
  [ "$(kubectl get nodes -l type=kwok -o name | wc -l)" -ge 4 ] || "$TEST_CLUSTER" fake-nodes 4
fi
if [ -z "${LOADER:-}" ]; then
  echo "tests/e2e/run.sh: set LOADER to what brings images to this cluster: kind, k3d, push, or a program" >&2
  exit 2
fi
E2E_TAG=${E2E_TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
case $LOADER in
  */*) E2E_REGISTRY=${E2E_REGISTRY:-localhost} WORKER=$E2E_REGISTRY/rollout-worker ;;
  push) WORKER=$E2E_REGISTRY/rollout-worker ;;
  *) E2E_REGISTRY='' WORKER=docker.io/library/rollout-worker ;; # as a node names an image without a registry
esac
export E2E_TAG E2E_REGISTRY ROLLOUT_TEST_WORKER_IMAGE="$WORKER:$E2E_TAG"

PLACE=$(mktemp -d)
trap 'rm -rf "$PLACE"; [ -z "${IMAGES:-}" ] || kill "$IMAGES" 2>/dev/null || true; ${AT_END:-}' EXIT
IMAGES=''
build() { # in the background; `have_images` waits
  [ "${E2E_BUILD:-yes}" != no ] || return 0
  say "images, meanwhile"
  # A program puts its own registry before the names.
  case $LOADER in */*) named='' ;; *) named=$E2E_REGISTRY ;; esac
  TAG=$E2E_TAG LOADER=$LOADER REGISTRY=$named images/build.sh >"$PLACE/images" 2>&1 &
  IMAGES=$!
}
have_images() {
  [ -n "$IMAGES" ] || return 0
  wait "$IMAGES" && IMAGES='' && say "images are there" && return
  IMAGES=''
  say "images"
  cat "$PLACE/images" >&2
  exit 1
}

failed=''
part() { # part WORDS ARGUMENTS...: goes on after a failure, so that one run shows all of them
  say "$1"
  name=$1
  shift
  $PYTEST "$@" && return
  if [ -n "${E2E_AGAIN:-}" ]; then
    say "$name: what failed, once more and alone"
    $PYTEST "$@" -n 0 --last-failed --last-failed-no-failures none && return
  fi
  failed="$failed
  $name"
}
finish() {
  say "done"
  [ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
  exit 0
}
if [ $# -gt 0 ]; then
  build
  have_images
  part "pytest $*" "$@"
  finish
fi
README=tests/e2e/jobs/test_readme.py
build
part "what needs the cluster for itself, and no image" tests/e2e -m "alone and no_image"
have_images
part "the README, on a cluster where nothing is installed" $README
if [ -n "${E2E_SHORT:-}" ]; then
  part "the definition's rules" tests/e2e/crd -p no:randomly
  finish
fi
part "what runs side by side" tests/e2e tests/chart -m "not alone" -n "${E2E_JOBS:-4}" --dist loadscope --no-loadscope-reorder \
  -p no:randomly
part "what needs the cluster for itself, and images" tests/e2e tests/chart -m "alone and not no_image" --ignore $README
finish
