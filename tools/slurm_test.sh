#!/usr/bin/env bash
# Test a checkpoint on a SLURM cluster.
#
# Usage: tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [flags of tools/test.py]
#
# CONFIG is a file, or the name of a file in configs/. Environment variables: GPUS (8), GPUS_PER_NODE (8),
# CPUS_PER_TASK (5), SRUN_ARGS, PYTHON (python), and
#   GPUS=0            test on CPUs with CPU_TASKS (1) processes, without asking for GPUs
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/slurm_common.sh"
parse_help "$@"
[ $# -ge 4 ] || fail "usage: tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [flags of tools/test.py]"
partition=$1 job_name=$2 config=$3 checkpoint=$4
shift 4
check_config "$config"
check_checkpoint "$checkpoint"
set_resources
require_program srun
submit "$partition" "$job_name" "$root/tools/test.py" "$config" "$checkpoint" "$@"
