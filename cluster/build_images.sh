#!/usr/bin/env bash
# Builds both images and pushes them: cluster/build_images.sh REGISTRY
#   --print        prints the commands and runs none
#   --no-push      keeps the images on this machine
#   --cpu          installs torch without CUDA
#   --efa=VERSION  installs EFA's libraries for AWS, in the installer's version
# $BUILDER names the program, by default docker.
set -euo pipefail

usage() {
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

registry="" print=false push=true index=()
for argument in "$@"; do
    case "$argument" in
        --print) print=true ;;
        --no-push) push=false ;;
        --cpu) index=(--build-arg "TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu") ;;
        --efa=*) index+=(--build-arg "EFA_VERSION=${argument#*=}") ;;
        -*) usage ;;
        *) registry="$argument" ;;
    esac
done
[ -n "$registry" ] || usage

cd "$(dirname "$0")/.."
platform="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
mlflow="$(sed -n 's/^mlflow==//p' constraints.txt)"

run() {
    if $print; then echo "$*"; else "$@"; fi
}

build() { # target, tag
    run "${BUILDER:-docker}" build -f cluster/Containerfile --target "$1" -t "$registry/$2" "${index[@]}" .
    if $push; then run "${BUILDER:-docker}" push "$registry/$2"; fi
}

build platform "gram-platform:$platform"
build mlflow "gram-mlflow:$mlflow"
