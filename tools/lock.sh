#!/bin/bash
# Renew the lock file: install what pyproject.toml asks for into an empty environment, note what came.
# usage: tools/lock.sh LOCK
set -euo pipefail
lock=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

${PYTHON:-python3} -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip --disable-pip-version-check --quiet install ".[dev]"
{
    grep '^#' "$lock"
    "$scratch/venv/bin/python" -m pip --disable-pip-version-check freeze --exclude inorder
} > "$scratch/lock"
mv "$scratch/lock" "$lock"
echo "renewed $lock; now: make check test"
