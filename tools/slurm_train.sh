#!/usr/bin/env bash
# Train through SLURM.
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS are taken from the environment.
# BATCH=1 submits a batch job that queues itself again when it was stopped: SBATCH_ARGS, docs/distributed.md.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/slurm_common.sh"
[ $# -ge 4 ] || fail "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]"
partition=$1 job_name=$2 config=$3 work_dir=$4
check_file config "$config"
# SLURM's warning: so many seconds before the end of the time limit the training saves and leaves.
warning=${WARNING_SECONDS:-120}
check_count WARNING_SECONDS "$warning" 1

if [ "${BATCH:-0}" = 1 ]; then
    need sbatch
    resources
    mkdir -p "$work_dir"
    # The batch job runs this script again, in its allocation. A new start appends to the same log.
    # shellcheck disable=SC2086 # SBATCH_ARGS holds several words
    BATCH=0 exec sbatch -p "$partition" --job-name="$job_name" "${resources[@]}" --requeue --signal=USR1@"$warning" \
        --open-mode=append --output="$work_dir/slurm-%j.out" ${SBATCH_ARGS:-} \
        --wrap="$(printf '%q ' exec bash "$root/tools/slurm_train.sh" "$@")"
fi

# A signal for all of the job must not end this shell before srun: what comes after it would be lost.
trap : TERM USR1
code=0
SRUN_ARGS="--signal=USR1@$warning ${SRUN_ARGS:-}" \
    submit "$partition" "$job_name" "$root/tools/train.py" "$config" --work-dir "$work_dir" "${@:5}" || code=$?
if [ "$code" = "$preempted" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    # Only a batch job can be queued again; one of salloc is told how to go on by the training itself.
    scontrol requeue "$SLURM_JOB_ID" && printf 'job %s is queued again\n' "$SLURM_JOB_ID"
fi
exit "$code"
