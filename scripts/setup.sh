#!/bin/bash
# Makes .tools (uv) and .venv (what requirements.lock says, and allranks itself) from nothing but python3 and its venv.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

check_python() {
    command -v "$PYTHON" >/dev/null ||
        fail "no $PYTHON on PATH" "allranks is built with Python 3.10 to 3.14: apt-get install python3 python3-venv"
    local version
    version="$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    case "$version" in
    3.1[0-4]) ;;
    *) fail "$(command -v "$PYTHON") is Python $version; 3.10 to 3.14 can be used" \
        "name another one: make setup PYTHON=/path/to/python3.12" ;;
    esac
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON has no venv module" "on Debian and Ubuntu: apt-get install python3-venv"
}

# The one uv that the lock names, its hash checked like everything else's.
get_uv() {
    local want
    want="$(sed -n 's/^uv==\([^ ]*\).*/uv \1/p' requirements.lock)"
    [[ "$(.tools/bin/uv --version 2>/dev/null)" == "$want"* ]] && return
    "$PYTHON" -m venv --clear .tools
    sed -n '/^uv==/,/# via/p' requirements.lock >.tools/uv.txt
    .tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .tools/uv.txt
}

make_venv() {
    local real
    real="$("$PYTHON" -c 'import os, sys; print(os.path.realpath(sys.executable))')"
    if [ "$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null)" != "$real" ]; then
        .tools/bin/uv venv --quiet --clear --no-python-downloads --python "$real" .venv
        echo "setup: fetching what requirements.lock names, torch among it: 2.5 GB the first time, kept in uv's cache"
    fi
    export VIRTUAL_ENV="$PWD/.venv"
    .tools/bin/uv pip sync --quiet --require-hashes requirements.lock
    .tools/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
}

check_python
get_uv
. scripts/index.sh
follow_pip
make_venv
