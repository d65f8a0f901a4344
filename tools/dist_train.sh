#!/usr/bin/env bash
# Train on several processes of this machine, or of several machines.
# Usage: tools/dist_train.sh CONFIG NPROC [flags of tools/train.py]
# Several machines: run it on each with NNODES, NODE_RANK, MASTER_ADDR and PORT set.
# After a worker has died all are started again, MAX_RESTARTS (3) times at most: docs/distributed.md.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/dist_common.sh"
[ $# -ge 2 ] || fail "usage: tools/dist_train.sh CONFIG NPROC [flags of tools/train.py]"
config=$1 nproc=$2
shift 2
check_file config "$config"
launch "${MAX_RESTARTS:-3}" "$nproc" "$root/tools/train.py" "$config" --launcher pytorch "$@"
