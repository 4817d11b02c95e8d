#!/bin/sh
# Builds the images: `images/build.sh [TARGET...]`, all of them if none is named. Settings come as variables:
#   TAG       of the images; default: the project's version
#   REGISTRY  before their names, such as registry.example.org/rl
#   BASE      what they stand on; default: as the Dockerfile says
#   BUILDER   docker, podman or buildah; default: the first one that is there and works
#   LOADER    what brings them to a cluster afterwards: `push` to REGISTRY, `kind` or `k3d` (with CLUSTER, their cluster's
#             name), or the path of a program that takes `build TAG DIR FILE ARG=VALUE...` and builds and loads by itself
set -eu
cd "$(dirname "$0")/.."
TARGETS=${*:-operator api worker learner redis}
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TAG=${TAG:-$VERSION}
REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)
LOADER=${LOADER:-}
CLUSTER=${CLUSTER:-}

if [ "$LOADER" = push ] && [ -z "${REGISTRY:-}" ]; then
  echo "images/build.sh: LOADER is push, but REGISTRY, where to, is not set" >&2
  exit 2
fi

works() { command -v "$1" >/dev/null 2>&1 && "$1" info >/dev/null 2>&1; }

if [ -z "${BUILDER:-}" ] && [ "${LOADER#*/}" = "$LOADER" ]; then
  for BUILDER in docker podman buildah none; do works "$BUILDER" && break; done
  if [ "$BUILDER" = none ]; then
    echo "images/build.sh: none of docker, podman and buildah works here; name one with BUILDER" >&2
    exit 2
  fi
fi

build() { # build TARGET NAME
  set -- "$1" "$2" --build-arg "TARGET=$1" --build-arg "VERSION=$VERSION" --build-arg "REVISION=$REVISION" --build-arg "SOURCE_DATE_EPOCH=0"
  target=$1 name=$2
  shift 2
  [ -z "${BASE:-}" ] || set -- "$@" --build-arg "BASE=$BASE"
  case $BUILDER in
    buildah) buildah bud --layers --timestamp 0 -t "$name" "$@" -f images/Dockerfile . ;;
    podman) podman build --layers --timestamp 0 -t "$name" "$@" -f images/Dockerfile . ;;
    docker) docker build -t "$name" "$@" -f images/Dockerfile . ;;
    *) echo "images/build.sh: BUILDER is $BUILDER, should be docker, podman or buildah" >&2; exit 2 ;;
  esac
}

for target in $TARGETS; do
  name=${REGISTRY:+$REGISTRY/}rollout-$target:$TAG
  case $LOADER in
    */*) "$LOADER" build "$name" . images/Dockerfile "TARGET=$target" "VERSION=$VERSION" "REVISION=$REVISION" ;;
    push) build "$target" "$name" && "$BUILDER" push "$name" ;;
    kind) build "$target" "$name" && kind load docker-image ${CLUSTER:+--name "$CLUSTER"} "$name" ;;
    k3d) build "$target" "$name" && k3d image import ${CLUSTER:+--cluster "$CLUSTER"} "$name" ;;
    "") build "$target" "$name" ;;
    *) echo "images/build.sh: LOADER is $LOADER, should be push, kind, k3d or the path of a program" >&2; exit 2 ;;
  esac
  echo "built $name"
done
