#!/usr/bin/env bash
# Train on a SLURM cluster.
#
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]
#
# Environment variables: GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS, PYTHON (python), and
#   WARNING_SECONDS   time before the limit at which the training saves a checkpoint and exits (120)
#   BATCH=1           submit a batch job that requeues itself when it was stopped; SBATCH_ARGS for sbatch
# docs/distributed.md has the details.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/slurm_common.sh"
parse_help "$@"
[ $# -ge 4 ] || fail "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]"
partition=$1 job_name=$2 config=$3 work_dir=$4
check_file config "$config"
warning=${WARNING_SECONDS:-120}
check_count WARNING_SECONDS "$warning" 1

if [ "${BATCH:-0}" = 1 ]; then
    require_program sbatch
    set_resources
    mkdir -p "$work_dir"
    # The batch job runs this script again, inside its allocation. A restart appends to the same log.
    # shellcheck disable=SC2086 # SBATCH_ARGS holds several words
    BATCH=0 exec sbatch -p "$partition" --job-name="$job_name" "${resources[@]}" --requeue --signal=USR1@"$warning" \
        --open-mode=append --output="$work_dir/slurm-%j.out" ${SBATCH_ARGS:-} \
        --wrap="$(printf '%q ' exec bash "$root/tools/slurm_train.sh" "$@")"
fi

# A signal to the whole job must not end this shell before srun returns: it still has to requeue the job.
trap : TERM USR1
code=0
SRUN_ARGS="--signal=USR1@$warning ${SRUN_ARGS:-}" \
    submit "$partition" "$job_name" "$root/tools/train.py" "$config" --work-dir "$work_dir" "${@:5}" || code=$?
if [ "$code" = "$preempted" ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    # This fails for a job of salloc, which cannot be requeued. The training has printed how to continue.
    scontrol requeue "$SLURM_JOB_ID" && printf 'job %s is queued again\n' "$SLURM_JOB_ID"
fi
exit "$code"
