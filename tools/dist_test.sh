#!/usr/bin/env bash
# Test a checkpoint with several processes on one or more machines.
#
# Usage: tools/dist_test.sh CONFIG CHECKPOINT NPROC [flags of tools/test.py]
#
# CONFIG is a file, or the name of a file in configs/. NPROC is the number of processes per
# machine. Environment variables:
#   NNODES, NODE_RANK, MASTER_ADDR, PORT
#                    several machines: run the script on each of them (1, 0, 127.0.0.1, 29500)
#   PYTHON           interpreter (python)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/dist_common.sh"
parse_help "$@"
[ $# -ge 3 ] || fail "usage: tools/dist_test.sh CONFIG CHECKPOINT NPROC [flags of tools/test.py]"
config=$1 checkpoint=$2 nproc=$3
shift 3
check_config "$config"
check_checkpoint "$checkpoint"
launch 0 "$nproc" "$root/tools/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
