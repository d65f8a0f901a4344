#!/usr/bin/env bash
# Train through SLURM.
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS are taken from the environment.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/slurm_common.sh"
[ $# -ge 4 ] || fail "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]"
partition=$1 job_name=$2 config=$3 work_dir=$4
shift 4
check_file config "$config"
submit "$partition" "$job_name" "$root/tools/train.py" "$config" --work-dir "$work_dir" "$@"
