# Functions of the launch scripts. Sourced, not executed.

fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

parse_help() { # ARGUMENTS… of the script: with -h or --help, print its header comment and exit
    case ${1:-} in
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    esac
}

check_file() { # NAME PATH
    [ -f "$2" ] || fail "$1 '$2' does not exist: pass the path of a file"
}

check_config() { # PATH, or the name of a file in configs/, which takes a second to look up
    [ -f "$1" ] || "${PYTHON:-python}" -m inline.engine.config_files "$1" || exit 2
}

check_checkpoint() { # PATH, URL or Hub name. Only missing files are detected here, tools/test.py checks the rest.
    case $1 in
        *://*) ;;
        *.pth | *.pt | *.ckpt | *.safetensors) check_file checkpoint "$1" ;;
    esac
}

check_count() { # NAME VALUE MINIMUM
    [[ $2 =~ ^[0-9]+$ ]] && [ "$2" -ge "$3" ] || fail "$1 is '$2': must be an integer, at least $3"
}

launch() { # MAX_RESTARTS NPROC SCRIPT ARGUMENTS…
    local max_restarts=$1 nproc=$2
    shift 2
    local nnodes=${NNODES:-1} node_rank=${NODE_RANK:-0} port=${PORT:-29500} rejoin=${REJOIN_SECONDS:-600}
    check_count MAX_RESTARTS "$max_restarts" 0
    check_count NPROC "$nproc" 1
    check_count NNODES "$nnodes" 1
    check_count NODE_RANK "$node_rank" 0
    check_count PORT "$port" 1
    check_count REJOIN_SECONDS "$rejoin" 1
    check_count GRACE_SECONDS "${GRACE_SECONDS:-1}" 1
    [ "$node_rank" -lt "$nnodes" ] || fail "NODE_RANK is '$node_rank': must be below NNODES, which is $nnodes"
    # One thread per process is torchrun's default, too; setting it here avoids its warning.
    # exec: a signal to this script must reach the agent.
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} exec "${PYTHON:-python}" -m inline.engine.distributed.agent \
        --nnodes "$nnodes" --nproc_per_node "$nproc" --max_restarts "$max_restarts" \
        --rdzv_backend c10d --rdzv_endpoint "${MASTER_ADDR:-127.0.0.1}:$port" --rdzv_id "inline-${MASTER_ADDR:-$HOSTNAME}:$port" \
        --rdzv_conf "is_host=$((node_rank == 0)),join_timeout=$rejoin" \
        ${LOCAL_ADDR:+--local_addr "$LOCAL_ADDR"} "$@"
}
