#!/bin/bash
# Resolves pyproject.toml into requirements.lock: versions and hashes for every supported Python, no host names.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/index.sh
follow_pip
.tools/bin/uv pip compile pyproject.toml --quiet --upgrade --all-extras --group dev --universal --python-version 3.10 \
    --generate-hashes --no-header --output-file requirements.lock
