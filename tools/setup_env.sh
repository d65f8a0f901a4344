#!/usr/bin/env bash
# Make or update the virtual environment that the Makefile's targets run in. Safe to run again: what is
# done is not done twice, what was interrupted goes on at the step where it stopped.
# Usage: tools/setup_env.sh      VENV=folder (default .venv)   PYTHON=interpreter (default python3)
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
python=${PYTHON:-python3}
stamps=$venv/.inline-setup

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# A step is done when its stamp holds what it was done for.
is_done() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$stamps" && printf '%s\n' "$2" > "$stamps/$1"; }

# Prints the elapsed time every half minute while a slow command runs. The command gets a process group
# of its own (set -m), so that an interrupt ends the compilers below it as well.
with_heartbeat() {
    set -m
    "$@" &
    set +m
    local job=$! started=$SECONDS told=0
    trap 'kill -- -"$job" 2> /dev/null; exit 130' INT TERM
    while kill -0 "$job" 2> /dev/null; do
        sleep 0.5
        if (( (SECONDS - started) / 30 > told )); then
            told=$(( (SECONDS - started) / 30 ))
            say "    … $((SECONDS - started)) s"
        fi
    done
    trap - INT TERM
    wait "$job"
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
        --constraint constraints.txt "$@"
}

command -v "$python" > /dev/null || fail "no interpreter '$python': set PYTHON to a Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "'$python' is $("$python" -V 2>&1): Python 3.11 or newer is needed"

[ -x "$venv/bin/python" ] || { say "making the virtual environment $venv"; "$python" -m venv "$venv"; }

pins=$(cat requirements.txt constraints.txt | sha256sum | cut -d ' ' -f 1)
package=$(cat setup.cfg pyproject.toml inline/__init__.py | sha256sum | cut -d ' ' -f 1)
here=$(pwd -P)
torch_pins=$(grep -E '^(torch|torchvision)==' requirements.txt)
build_pins=$(grep -E '^(click|ninja|psutil|setuptools|wheel)==' requirements.txt)

if ! is_done torch "$torch_pins $build_pins"; then
    say "1/4 torch and torchvision (a few hundred MB on the first run)"
    # shellcheck disable=SC2086 # one word a requirement
    with_heartbeat pip_install $build_pins
    # shellcheck disable=SC2086
    with_heartbeat pip_install $torch_pins
    mark_done torch "$torch_pins $build_pins"
fi

if ! is_done requirements "$pins"; then
    say "2/4 the other requirements. mmcv compiles its operators from source: about 13 CPU-minutes the"
    say "    first time (7 minutes on 2 cores); pip keeps the result for the next environment"
    # -g0 -O2 halves the compile; MMCV_WITH_OPS makes a missing compiler an error instead of a silent lack.
    CFLAGS="${CFLAGS:--g0 -O2}" MMCV_WITH_OPS=1 with_heartbeat pip_install -r requirements.txt ||
        fail "installing requirements.txt failed (see above): a C++ compiler and Python's headers are needed"
    mark_done requirements "$pins"
fi

if ! is_done package "$package $here"; then
    say "3/4 the package itself, editable"
    pip_install --no-deps --editable .
    mark_done package "$package $here"
fi

if ! is_done checked "$pins $package"; then
    say "4/4 checking that mmcv's compiled operators run"
    "$venv/bin/python" -m inline.compat ||
        fail "mmcv has no working operators: run '$venv/bin/pip uninstall -y onedl-mmcv; $venv/bin/pip cache remove onedl_mmcv; rm -r $stamps' and this again"
    mark_done checked "$pins $package"
    say "ready: source $venv/bin/activate"
fi
