#!/bin/bash
# Make a virtual environment with exactly the versions of a lock file, and inorder itself, editable.
# usage: tools/make_venv.sh VENV LOCK
set -euo pipefail
venv=$1 lock=$2

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$name" >/dev/null && is_new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "inorder needs Python 3.11 or newer, and none was found." >&2
    echo "Install one (Debian: apt-get install python3 python3-venv), or say where it is:" >&2
    echo "  make setup PYTHON=/path/to/python3.12" >&2
    return 1
}

if ! { [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python"; }; then
    python=$(find_python)
    echo "making $venv with $("$python" --version)"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv"; then
        echo "Python is there but cannot make environments." >&2
        echo "Install its venv module (Debian: apt-get install python3-venv) and try again." >&2
        exit 1
    fi
fi

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}

echo "installing the versions of $lock"
pip install --prefer-binary -r "$lock"
# The build backend is in the lock as well: no second, unlocked environment for the build.
pip install --no-deps --no-build-isolation --editable .
# Bytecode once, also where PYTHONDONTWRITEBYTECODE is set: without it every start compiles 300 modules.
"$venv/bin/python" -m compileall -q src/inorder
# One module is compiled where there is a C compiler; without one everything works, some of it slower.
"$venv/bin/python" -c 'from inorder.accelerated import reason; print("compiled module:", reason)'
