"""Jobs on a real SLURM: two nodes, time limit, cancellation, lost nodes and processes, config errors."""

import fcntl
import json
import tempfile
from pathlib import Path

import pytest

from inline.engine.distributed.slurm import step_port
from tests.slurm.cluster import missing_programs, node_address
from tests.slurm.scenarios import Facts, run_scenarios

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_programs()),
        reason=f'SLURM is not installed (apt install slurm-wlm munge): no {", ".join(missing_programs())}',
    ),
]
ALL_STEPS = list(range(1, 13))


@pytest.fixture(scope='module')
def facts(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Facts]:
    """What happened in every scenario. The first of parallel test workers runs all, the others wait."""
    if worker_id == 'master':
        return run_in_short_folder(digit_scenes)
    answers = tmp_path_factory.getbasetemp().parent / 'slurm_jobs.json'
    with answers.with_suffix('.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            answers.write_text(json.dumps(run_in_short_folder(digit_scenes)))
    return json.loads(answers.read_text())


def run_in_short_folder(data: Path) -> dict[str, Facts]:
    # The paths of sockets have a limited length, which pytest's folders may exceed.
    with tempfile.TemporaryDirectory(prefix='slurm-', dir='/tmp') as folder:
        return run_scenarios(Path(folder), data)


@pytest.fixture
def job(facts: dict[str, Facts], request: pytest.FixtureRequest) -> Facts:
    """The facts of the scenario that the test is named after."""
    found = facts[request.node.name.removeprefix('test_')]
    assert 'failure' not in found, found['failure']
    return found


def test_time_limit_then_cancel(job: Facts) -> None:
    assert job['state'] == 'CANCELLED', job['output']
    assert job['requeues'] == 1
    # Nothing is lost or repeated, and the cancelled job has saved, too. The folder's name has a % sign.
    assert job['steps'] == [ALL_STEPS[:6], ALL_STEPS[6:9]]
    assert 'stopped by SIGUSR1 after step 6, saved to ' in job['output']
    assert 'stopped by SIGTERM after step 9, saved to ' in job['output']
    assert job['output'].count('is requeued') == 1
    assert job['saved']


def test_two_nodes(job: Facts) -> None:
    assert job['trained']['code'] == 0, job['trained']['output']
    assert job['steps'] == [ALL_STEPS]
    assert job['tested']['code'] == 0, job['tested']['output']
    validated, tested = (
        job[name]['output'].rpartition('accuracy/top1:')[2].split()[0] for name in ('trained', 'tested')
    )
    assert validated == tested


def test_two_jobs_on_one_node(job: Facts) -> None:
    for kind in ('gpu', 'cpu'):
        assert job[kind]['state'] == 'COMPLETED', job[kind]['output']
        assert job[kind]['steps'] == [ALL_STEPS]
        assert job[kind]['nodes'] == 'node1'
    assert 'gpu' not in job['cpu_resources']


def test_lost_node(job: Facts) -> None:
    assert job['state'] == 'COMPLETED', job['output']
    assert (job['requeues'], {job['lost'], job['nodes']}) == (1, {'node3', 'node4'})
    # The job continues from the checkpoint after step 4.
    assert job['steps'] == [ALL_STEPS[:5], ALL_STEPS[4:]]


def test_killed_rank(job: Facts) -> None:
    assert job['state'] == 'COMPLETED', job['output']
    assert job['requeues'] == 0
    assert job['steps'] == [ALL_STEPS[:5], ALL_STEPS[4:]]
    assert 'the run exited with code 137: restarting it, 2 restarts left' in job['output']


def test_slow_exit(job: Facts) -> None:
    assert job['state'] == 'COMPLETED', job['output']
    assert job['requeues'] == 1
    assert job['steps'] == [ALL_STEPS[:6], ALL_STEPS[6:]]


@pytest.mark.parametrize('late', ['rank 0', 'rank 1'])
def test_late_rank(late: str, facts: dict[str, Facts]) -> None:
    assert 'failure' not in facts['late_rank'], facts['late_rank']
    job = facts['late_rank'][late]
    assert (job['state'], job['code'], job['requeues']) == ('FAILED', 2, 0), job['output']
    errors = [line for line in job['output'].splitlines() if line.startswith('error: ')]
    assert len(errors) == 1
    assert errors[0].startswith("error: model.backbone: unknown arch 'gigantic'")
    assert 'Traceback' not in job['output']


def test_no_progress(job: Facts) -> None:
    assert (job['state'], job['code'], job['requeues']) == ('FAILED', 1, 2), job['output']
    assert 'was stopped 3 times without a new checkpoint: not requeued' in job['output']


def test_rendezvous(job: Facts) -> None:
    """Not the machine on which srun was started, whose address is 127.0.0.1, and a port for each step."""
    assert len(job['lines']) == 2, job['errors']
    number = job['lines'][0][0]
    ports = [step_port({'SLURM_JOB_ID': number, 'SLURM_STEP_ID': step}) for step in ('0', '1')]
    assert [line[1:] for line in job['lines']] == [
        [node_address('node1'), ports[0]],
        [node_address('node2'), ports[1]],
    ]


def test_no_files_and_processes_remain(facts: dict[str, Facts]) -> None:
    assert facts['after'] == {'processes': 0}
    ended = [facts[name] for name in ('time_limit_then_cancel', 'killed_rank', 'slow_exit', 'no_progress')]
    assert [job.get('left') for job in ended] == [[]] * len(ended)
