#!/usr/bin/env bash
# Test a checkpoint on several processes of this machine, or of several machines.
# Usage: tools/dist_test.sh CONFIG CHECKPOINT NPROC [flags of tools/test.py]
# Several machines: run it on each with NNODES, NODE_RANK, MASTER_ADDR and PORT set.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/dist_common.sh"
[ $# -ge 3 ] || fail "usage: tools/dist_test.sh CONFIG CHECKPOINT NPROC [flags of tools/test.py]"
config=$1 checkpoint=$2 nproc=$3
shift 3
check_file config "$config"
check_file checkpoint "$checkpoint"
launch 0 "$nproc" "$root/tools/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
