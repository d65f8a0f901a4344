#!/usr/bin/env bash
# Train on a SLURM cluster.
#
# Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]
#
# CONFIG is a file, or the name of a file in configs/. Environment variables: GPUS (8), GPUS_PER_NODE (8),
# CPUS_PER_TASK (5), SRUN_ARGS, PYTHON (python), and
#   GPUS=0            train on CPUs with CPU_TASKS (1) processes, without asking for GPUs
#   WARNING_SECONDS   time before the limit at which the run saves a checkpoint and exits (120)
#   BATCH=1           submit a batch job that requeues itself when it was stopped; SBATCH_ARGS for sbatch
# Inside a job:
#   MAX_RESTARTS      restarts of the run after a process has failed (3)
#   MAX_REQUEUES      requeues in a row without a new checkpoint (3)
# docs/distributed.md has the details.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/tools/slurm_common.sh"
parse_help "$@"
[ $# -ge 4 ] || fail "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [flags of tools/train.py]"
partition=$1 job_name=$2 config=$3 work_dir=$4
check_config "$config"
warning=${WARNING_SECONDS:-120} max_restarts=${MAX_RESTARTS:-3} max_requeues=${MAX_REQUEUES:-3}
check_count WARNING_SECONDS "$warning" 1
check_count MAX_RESTARTS "$max_restarts" 0
check_count MAX_REQUEUES "$max_requeues" 0
set_resources

if [ "${BATCH:-0}" = 1 ]; then
    require_program sbatch
    make_work_dir "$work_dir"
    # The batch job runs this script again, inside its allocation. A restart appends to the same log.
    # % starts a placeholder in the name of the log.
    # shellcheck disable=SC2086 # SBATCH_ARGS holds several words
    BATCH=0 exec sbatch -p "$partition" --job-name="$job_name" "${resources[@]}" --requeue --signal=USR1@"$warning" \
        --open-mode=append --output="${work_dir//%/%%}/slurm-%j.out" ${SBATCH_ARGS:-} \
        < <(printf '#!/usr/bin/env bash\nexec bash '; printf '%q ' "$root/tools/slurm_train.sh" "$@"; echo)
fi

require_program srun
make_work_dir "$work_dir"
# Files of this job: when it started, whether rank 0 was stopped by a signal, and requeues without a new checkpoint.
files=$(cd "$work_dir" && pwd)/.slurm-${SLURM_JOB_ID:-$HOSTNAME-$$}
export INLINE_PREEMPTED_FILE=$files.preempted

is_running() { # whether this is a job that is neither cancelled nor at its end
    local listed attempt
    [ -n "${SLURM_JOB_ID:-}" ] || return 1
    # A busy controller may not answer in time.
    for attempt in 1 2 3; do
        if listed=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format='%A %T'); then
            [[ $'\n'$listed$'\n' = *$'\n'"$SLURM_JOB_ID RUNNING"$'\n'* ]]
            return
        fi
        [ "$attempt" = 3 ] || sleep 2
    done
    return 1
}

finish() { # CODE [MESSAGE of an error]
    rm -f "$files".*
    [ -z "${2:-}" ] || printf 'error: %s\n' "$2" >&2
    exit "$1"
}

requeue() { # requeue the job, unless it made no progress too often
    local count=0
    if ! [ "$work_dir/last_checkpoint" -nt "$files.started" ]; then
        [ ! -f "$files.requeues" ] || count=$(< "$files.requeues")
        [ "$count" -lt "$max_requeues" ] ||
            finish 1 "job $SLURM_JOB_ID was stopped $((count + 1)) times without a new checkpoint: not requeued"
        count=$((count + 1))
    fi
    printf '%s\n' "$count" > "$files.requeues"
    # This fails for a job of salloc, which cannot be requeued. The run has printed how to continue.
    scontrol requeue "$SLURM_JOB_ID" || finish "$preempted"
    printf 'job %s is requeued\n' "$SLURM_JOB_ID"
    exit "$preempted"
}

# A signal to the whole job must not end this shell before srun returns: it still has to requeue the job.
trap : TERM USR1
for ((left = max_restarts; ; left--)); do
    rm -f "$files.preempted"
    touch "$files.started"
    code=0
    SRUN_ARGS="--signal=USR1@$warning ${SRUN_ARGS:-}" \
        submit "$partition" "$job_name" "$root/tools/train.py" "$config" --work-dir "$work_dir" "${@:5}" || code=$?
    # The marker decides, not the exit code: that of srun is the highest of all ranks, and a rank that was slow to
    # exit has been killed. A signal that comes before Python can handle it ends a rank with 128 + 10.
    if [ -f "$files.preempted" ] || [ "$code" = 138 ]; then
        is_running || finish "$preempted"
        requeue
    fi
    case $code in 0 | 2 | "$preempted" | 130) finish "$code" ;; esac
    [ "$left" -gt 0 ] && is_running || finish "$code"
    printf 'the run exited with code %s: restarting it, %s restarts left\n' "$code" "$((left - 1))" >&2
    export INLINE_RESTARTED=1
done
