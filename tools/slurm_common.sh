# Functions of the SLURM scripts. Sourced, not executed.
source "$root/tools/dist_common.sh"

# Exit code of a run that saved a checkpoint after a signal (inline/engine/signals.py).
preempted=75

set_resources() { # set the array `resources` to the srun options that the environment asks for
    # CPU_TASKS alone means GPUS=0.
    local gpus=${GPUS:-$([ -n "${CPU_TASKS:-}" ] && echo 0 || echo 8)}
    local per_node=${GPUS_PER_NODE:-8} cpus=${CPUS_PER_TASK:-5} cpu_tasks=${CPU_TASKS:-1}
    check_count GPUS "$gpus" 0
    check_count GPUS_PER_NODE "$per_node" 1
    check_count CPUS_PER_TASK "$cpus" 1
    check_count CPU_TASKS "$cpu_tasks" 1
    if [ "$gpus" = 0 ]; then
        # A node without isolated devices shows its GPUs to all jobs.
        export CUDA_VISIBLE_DEVICES=
        resources=(--ntasks="$cpu_tasks" --cpus-per-task="$cpus")
        return
    fi
    [ -z "${CPU_TASKS:-}" ] || fail "CPU_TASKS is '$CPU_TASKS' and GPUS is '$gpus': CPU_TASKS needs GPUS=0"
    per_node=$((gpus < per_node ? gpus : per_node))
    resources=(--gres=gpu:"$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node" --cpus-per-task="$cpus")
}

require_program() { # PROGRAM
    command -v "$1" > /dev/null || fail "$1 is not found: this script needs SLURM; without it use tools/dist_train.sh"
}

make_work_dir() { # PATH
    mkdir -p "$1" 2> /dev/null || fail "WORK_DIR '$1': cannot create this folder"
}

submit() { # PARTITION JOB_NAME SCRIPT ARGUMENTS…, after set_resources
    local partition=$1 job_name=$2
    shift 2
    # shellcheck disable=SC2086 # SRUN_ARGS holds several words
    srun -p "$partition" --job-name="$job_name" "${resources[@]}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
        "${PYTHON:-python}" -u "$1" "${@:2}" --launcher slurm
}
