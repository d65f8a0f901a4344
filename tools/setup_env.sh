#!/usr/bin/env bash
# Create or update the virtual environment of the Makefile targets.
#
# Usage: tools/setup_env.sh
#
# Running it again skips finished steps and continues after an interrupted one. Environment variables:
#   VENV     folder of the environment (.venv)
#   PYTHON   interpreter to create it with, 3.11 or newer (python3)
set -euo pipefail
case ${1:-} in
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
python=${PYTHON:-python3}
stamps=$venv/.inline-setup

log() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# A step is finished when its stamp holds the inputs of the step.
is_done() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$stamps" && printf '%s\n' "$2" > "$stamps/$1"; }

# Run a slow command and print the elapsed time every 30 seconds. The command gets its own process group
# (set -m), so that an interrupt also ends the compilers that it started.
with_heartbeat() {
    set -m
    "$@" &
    set +m
    local job=$! started=$SECONDS printed=0
    trap 'kill -- -"$job" 2> /dev/null; exit 130' INT TERM
    while kill -0 "$job" 2> /dev/null; do
        sleep 0.1
        if (( (SECONDS - started) / 30 > printed )); then
            printed=$(( (SECONDS - started) / 30 ))
            log "    … $((SECONDS - started)) s"
        fi
    done
    trap - INT TERM
    wait "$job"
}

pip_install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
        --constraint constraints.txt "$@"
}

command -v "$python" > /dev/null || fail "interpreter '$python' is not found: set PYTHON to Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "'$python' is $("$python" -V 2>&1): Python 3.11 or newer is required"

[ -x "$venv/bin/python" ] || { log "creating the virtual environment $venv"; "$python" -m venv "$venv"; }

pins=$(cat requirements.txt constraints.txt | sha256sum | cut -d ' ' -f 1)
package=$(cat setup.py setup.cfg pyproject.toml inline/__init__.py | sha256sum | cut -d ' ' -f 1)
here=$(pwd -P)
torch_pins=$(grep -E '^(torch|torchvision)==' requirements.txt)
build_pins=$(grep -E '^(click|ninja|psutil|setuptools|wheel)==' requirements.txt)

if ! is_done torch "$torch_pins $build_pins"; then
    log "1/4 torch and torchvision (a few hundred MB on the first run)"
    # shellcheck disable=SC2086 # one word per requirement
    with_heartbeat pip_install $build_pins
    # shellcheck disable=SC2086
    with_heartbeat pip_install $torch_pins
    mark_done torch "$torch_pins $build_pins"
fi

if ! is_done requirements "$pins"; then
    log "2/4 other requirements; compiling the operators of mmcv takes about 13 CPU minutes the first time"
    log "    (7 minutes on 2 cores), pip caches the result"
    # -g0 -O2 halves the compile time. With MMCV_WITH_OPS a missing compiler is an error; without it, mmcv
    # would be installed without operators.
    CFLAGS="${CFLAGS:--g0 -O2}" MMCV_WITH_OPS=1 with_heartbeat pip_install -r requirements.txt ||
        fail "installing requirements.txt failed, see above: it needs a C++ compiler and the Python headers"
    mark_done requirements "$pins"
fi

if ! is_done package "$package $here"; then
    log "3/4 this package, editable"
    pip_install --no-deps --editable .
    mark_done package "$package $here"
fi

if ! is_done checked "$pins $package"; then
    log "4/4 checking that mmcv's compiled operators run"
    "$venv/bin/python" -m inline.openmmlab.patches ||
        fail "the operators of mmcv do not work: run '$venv/bin/pip uninstall -y onedl-mmcv; $venv/bin/pip cache remove onedl_mmcv; rm -r $stamps' and start again"
    mark_done checked "$pins $package"
    log "ready: source $venv/bin/activate"
fi
