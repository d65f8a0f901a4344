"""The process group of a SLURM step, read from the environment of its tasks. Does not import torch."""

import re
import socket
import subprocess
from collections.abc import Mapping

from inline.utils.errors import UserError

DEFAULT_PORT = '29500'
# Below the ephemeral ports (from 32768 on Linux), and excluding 29500 of tools/dist_train.sh.
_FIRST_PORT, _NUM_PORTS = 10000, 19000
# Steps of one job that may run at the same time without sharing a port.
_STEPS_PER_JOB = 16


def torchrun_environment(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of torchrun, computed from those of a SLURM task.

    ``MASTER_ADDR`` and ``MASTER_PORT`` are kept if they are set.
    """
    try:
        return {
            'RANK': slurm['SLURM_PROCID'],
            'WORLD_SIZE': slurm['SLURM_NTASKS'],
            'LOCAL_RANK': slurm['SLURM_LOCALID'],
            'MASTER_ADDR': slurm.get('MASTER_ADDR') or node_address(first_host(slurm['SLURM_STEP_NODELIST'])),
            'MASTER_PORT': slurm.get('MASTER_PORT') or step_port(slurm),
        }
    except KeyError as error:
        raise UserError(
            f'--launcher slurm but {error.args[0]} is not set: start with tools/slurm_train.sh or srun'
        ) from error


def first_host(nodes: str) -> str:
    """Return the first host of a node list, such as ``node07`` of ``node[07-09,12],login1``.

    Rank 0 runs there. ``scontrol show hostnames`` prints the same, but is not installed on every node.
    """
    # The list ends at the first comma outside of brackets.
    entry = re.match(r'(?:[^,\[]|\[[^\]]*\])*', nodes)
    return re.sub(r'\[(\w+)[^\]]*\]', r'\1', entry[0] if entry else nodes)


def node_address(name: str) -> str:
    """Return an address of a node: its name, or what SLURM's config says if the name does not resolve."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        # Only as a fallback: every rank sends this query to the controller.
        shown = subprocess.run(
            ['scontrol', '--oneliner', 'show', 'node', name], capture_output=True, text=True, check=False
        ).stdout
        address = re.search(r'\bNodeAddr=(\S+)', shown)
        return address[1] if address else name
    return name


def step_port(slurm: Mapping[str, str]) -> str:
    """Return the port of a step's rendezvous. Jobs and steps that share a node get different ports."""
    if 'SLURM_JOB_ID' not in slurm:
        return DEFAULT_PORT
    number = int(slurm['SLURM_JOB_ID']) * _STEPS_PER_JOB + int(slurm.get('SLURM_STEP_ID', '0'))
    return str(_FIRST_PORT + number % _NUM_PORTS)
