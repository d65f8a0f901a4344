"""Tests. Importing the package gives them an environment that does not depend on the machine or its user."""

import os
import re

# Settings that would change what tests see: launchers, experiment trackers, data, proxies, locale.
_FOREIGN = re.compile(
    r'(SLURM|TORCHELASTIC|WANDB|MLFLOW|GIT|OMPI|PMI)_\w+|(https?|ftp|all|no)_proxy'
    r'|INLINE_(DATA_ROOT|RESTARTED|PREEMPTED_FILE)|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NNODES|NODE_RANK'
    r'|PORT|LOCAL_ADDR|BATCH|(GRACE|REJOIN|WARNING)_SECONDS|MAX_RE(STARTS|QUEUES)|CPU_TASKS|GPUS(_PER_NODE)?|CPUS_PER_TASK'
    r'|S(RUN|BATCH)_ARGS|LANGUAGE|LC_\w+',
    re.IGNORECASE,
)
for _name in [name for name in os.environ if _FOREIGN.fullmatch(name)]:
    del os.environ[_name]
os.environ.update(
    # Processes of tests share few cores. Threads that wait for a busy core are many times slower than one.
    OMP_NUM_THREADS='1',
    ORT_DISABLE_TELEMETRY='1',
    # Tests describe the behaviour on a CPU. Those of GPU code replace torch.cuda.is_available.
    CUDA_VISIBLE_DEVICES='',
    LANG='C.UTF-8',
    GIT_CONFIG_GLOBAL=os.devnull,
    GIT_CONFIG_SYSTEM=os.devnull,
)
