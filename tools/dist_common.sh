# What the launch scripts share; sourced, not run.

fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

check_file() { # WHAT PATH
    [ -f "$2" ] || fail "$1 '$2' does not exist: give the path of a file"
}

check_count() { # NAME VALUE LOWEST
    [[ $2 =~ ^[0-9]+$ ]] && [ "$2" -ge "$3" ] || fail "$1 is '$2': must be a whole number, at least $3"
}

launch() { # NPROC SCRIPT ARGUMENTS…
    local nproc=$1
    shift
    local nnodes=${NNODES:-1} node_rank=${NODE_RANK:-0} port=${PORT:-29500}
    check_count NPROC "$nproc" 1
    check_count NNODES "$nnodes" 1
    check_count NODE_RANK "$node_rank" 0
    check_count PORT "$port" 1
    [ "$node_rank" -lt "$nnodes" ] || fail "NODE_RANK is '$node_rank': must be below NNODES, which is $nnodes"
    # One thread a process unless told otherwise: torchrun's own default, without its warning.
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "${PYTHON:-python}" -m torch.distributed.run \
        --nnodes "$nnodes" --node_rank "$node_rank" --nproc_per_node "$nproc" \
        --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "$port" "$@"
}
