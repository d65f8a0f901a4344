# Functions of the SLURM scripts. Sourced, not executed.
source "$root/tools/dist_common.sh"

# Exit code of a training that saved a checkpoint after a signal (inline/engine/signals.py).
preempted=75

set_resources() { # set the array `resources` to the srun options that the environment asks for
    local gpus=${GPUS:-8} per_node=${GPUS_PER_NODE:-8} cpus=${CPUS_PER_TASK:-5}
    check_count GPUS "$gpus" 1
    check_count GPUS_PER_NODE "$per_node" 1
    check_count CPUS_PER_TASK "$cpus" 1
    per_node=$((gpus < per_node ? gpus : per_node))
    resources=(--gres=gpu:"$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node" --cpus-per-task="$cpus")
}

require_program() { # PROGRAM
    command -v "$1" > /dev/null || fail "$1 is not found: this script needs SLURM; without it use tools/dist_train.sh"
}

submit() { # PARTITION JOB_NAME SCRIPT ARGUMENTS…
    local partition=$1 job_name=$2
    shift 2
    set_resources
    require_program srun
    # shellcheck disable=SC2086 # SRUN_ARGS holds several words
    srun -p "$partition" --job-name="$job_name" "${resources[@]}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
        "${PYTHON:-python}" -u "$1" "${@:2}" --launcher slurm
}
