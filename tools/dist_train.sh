#!/usr/bin/env bash
# Train with several processes on one or more machines.
#
# Usage: tools/dist_train.sh CONFIG NPROC [flags of tools/train.py]
#
# CONFIG is a file, or the name of a file in configs/. NPROC is the number of processes per
# machine. Environment variables:
#   NNODES, NODE_RANK, MASTER_ADDR, PORT
#                    several machines: run the script on each of them (1, 0, 127.0.0.1, 29500)
#   MAX_RESTARTS     restarts of all workers after one of them has failed (3)
#   REJOIN_SECONDS   time to wait for a lost machine (600)
#   GRACE_SECONDS    time for workers to save a checkpoint after a signal (300)
#   LOCAL_ADDR       address of this machine, if the one on the route to MASTER_ADDR is not the right one
#   PYTHON           interpreter (python)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/dist_common.sh"
parse_help "$@"
[ $# -ge 2 ] || fail "usage: tools/dist_train.sh CONFIG NPROC [flags of tools/train.py]"
config=$1 nproc=$2
shift 2
check_config "$config"
launch "${MAX_RESTARTS:-3}" "$nproc" "$root/tools/train.py" "$config" --launcher pytorch "$@"
