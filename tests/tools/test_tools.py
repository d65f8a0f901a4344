"""The training and testing tools in real processes, and their error messages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inline.engine.logs import read_test_metrics
from tests.conftest import ROOT, free_port, link_programs, run_fresh, run_tool

CLASSIFIER = 'configs/digits/inline-pvt-micro_digits.py'
MASK_RCNN = 'configs/digits/mask-rcnn_inline-pvt-micro_digits.py'
# Without the modules that the documentation site imports.
TOOLS = sorted(path.name for path in (ROOT / 'tools').glob('*.py') if not path.name.startswith('site_'))
SEMANTIC_FPN = 'configs/digits/semantic-fpn_inline-pvt-micro_digits.py'


def short_run(data: Path, iterations: int = 2) -> list[str]:
    """Return options that make a digits config train for a few steps on the small test data."""
    options = {
        'train_cfg.max_iters': iterations,
        'train_cfg.val_interval': iterations,
        'default_hooks.logger.interval': 1,
    }
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        options |= {
            f'{loader}.num_workers': 0,
            f'{loader}.persistent_workers': False,
            f'{loader}.batch_size': 2,
        }
        options[f'{loader}.dataset.data_root'] = data
    return ['--cfg-options', *(f'{key}={value}' for key, value in options.items())]


def classification(data: Path, iterations: int = 2) -> list[str]:
    return short_run(data / 'classification', iterations)


def detection(data: Path, iterations: int = 2) -> list[str]:
    annotations = data / 'instances_val.json'
    return [
        *short_run(data, iterations),
        f'val_evaluator.ann_file={annotations}',
        f'test_evaluator.ann_file={annotations}',
        'model.test_cfg.rcnn.score_thr=0.0',
    ]


def scalars(work_dir: Path) -> list[dict]:
    return read_lines(max(work_dir.glob('*/vis_data/scalars.json')))


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope='module')
def pretrained(digit_scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a classifier, trained for two steps by two processes."""
    work_dir = tmp_path_factory.mktemp('classifier')
    done = run_tool(
        'tools/dist_train.sh',
        CLASSIFIER,
        '2',
        '--work-dir',
        work_dir,
        *classification(digit_scenes),
        PORT=free_port(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return work_dir


@pytest.mark.slow
def test_two_processes_train_and_write_all_logs(pretrained: Path) -> None:
    # The launcher restarts a worker that dies, which would add a second log.
    log = min(pretrained.glob('*/*.log')).read_text()
    assert 'Distributed launcher: pytorch' in log
    assert re.search(r'GPU number: 2|world_size.*2', log)
    assert re.search(r'Iter\(train\) \[2/2\].*eta: \d', log)
    first = read_lines(min(pretrained.glob('*/vis_data/scalars.json')))
    assert [line['step'] for line in first if 'loss' in line] == [1, 2]
    assert list(pretrained.glob('*/vis_data/events.out.tfevents*'))
    assert (pretrained / 'last_checkpoint').read_text().endswith('iter_2.pth')


@pytest.mark.slow
def test_one_and_two_processes_measure_the_validation_accuracy(
    pretrained: Path, digit_scenes: Path, tmp_path: Path
) -> None:
    validated = scalars(pretrained)[-1]['accuracy/top1']
    checkpoint = pretrained / 'iter_2.pth'
    predictions = tmp_path / 'predictions.pkl'
    options = classification(digit_scenes)
    one = run_tool(
        'tools/test.py',
        CLASSIFIER,
        checkpoint,
        '--work-dir',
        tmp_path / 'one',
        '--out',
        predictions,
        *options,
    )
    assert one.returncode == 0, one.stderr[-3000:]
    two = run_tool(
        'tools/dist_test.sh',
        CLASSIFIER,
        checkpoint,
        '2',
        '--work-dir',
        tmp_path / 'two',
        *options,
        PORT=free_port(),
    )
    assert two.returncode == 0, two.stderr[-3000:]
    for folder in ('one', 'two'):
        assert read_test_metrics(tmp_path / folder)['accuracy/top1'] == validated
    assert predictions.stat().st_size > 0


@pytest.mark.slow
def test_fine_tuning_starts_from_the_pretrained_weights(
    pretrained: Path, digit_scenes: Path, tmp_path: Path
) -> None:
    """With a learning rate of zero, the saved backbone equals the loaded one."""
    checkpoint = pretrained / 'iter_2.pth'
    done = run_tool(
        'tools/train.py',
        MASK_RCNN,
        '--work-dir',
        tmp_path,
        '--pretrained',
        checkpoint,
        *detection(digit_scenes, 1),
        'optim_wrapper.optimizer.lr=0',
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = torch.load(checkpoint, weights_only=False)['state_dict']
    saved = torch.load(tmp_path / 'iter_1.pth', weights_only=False)['state_dict']
    backbone = [key for key in loaded if key.startswith('backbone.') and 'out_norms' not in key]
    assert len(backbone) > 50
    for key in backbone:
        assert torch.equal(loaded[key], saved[key]), key
    assert {'coco/bbox_mAP_50', 'coco/segm_mAP_50'} <= scalars(tmp_path)[-1].keys()


@pytest.mark.slow
def test_training_resumes_where_it_stopped(pretrained: Path, digit_scenes: Path, tmp_path: Path) -> None:
    options = ['--work-dir', tmp_path, '--pretrained', pretrained / 'iter_2.pth', '--amp']
    first = run_tool('tools/train.py', SEMANTIC_FPN, *options, *short_run(digit_scenes, 2))
    assert first.returncode == 0, first.stderr[-3000:]
    assert [line['step'] for line in scalars(tmp_path) if 'loss' in line] == [1, 2]
    again = run_tool('tools/train.py', SEMANTIC_FPN, '--resume', *options, *short_run(digit_scenes, 3))
    assert again.returncode == 0, again.stderr[-3000:]
    assert [line['step'] for line in scalars(tmp_path) if 'loss' in line] == [3]
    drawn = tmp_path / 'drawn'
    tested = run_tool(
        'tools/test.py',
        SEMANTIC_FPN,
        tmp_path / 'iter_3.pth',
        '--work-dir',
        tmp_path / 'test',
        '--show-dir',
        drawn,
        *short_run(digit_scenes),
    )
    assert tested.returncode == 0, tested.stderr[-3000:]
    assert 0 <= read_test_metrics(tmp_path / 'test')['mIoU'] <= 100
    assert len(list(drawn.rglob('*.png'))) == 4


@pytest.mark.slow
@pytest.mark.parametrize('name', ['retinanet', 'upernet'])
def test_the_other_digits_configs_train(name: str, digit_scenes: Path, tmp_path: Path) -> None:
    config = f'configs/digits/{name}_inline-pvt-micro_digits.py'
    options = short_run(digit_scenes)
    if name == 'retinanet':
        options += [
            f'val_evaluator.ann_file={digit_scenes / "instances_val.json"}',
            'model.test_cfg.score_thr=0.0',
        ]
    done = run_tool('tools/train.py', config, '--work-dir', tmp_path, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [line['loss'] for line in scalars(tmp_path) if 'loss' in line]
    assert len(losses) == 2
    assert all(0 < loss < 100 for loss in losses)


@pytest.mark.parametrize('tool', TOOLS)
def test_every_tool_has_a_help_text(tool: str) -> None:
    done = run_tool(f'tools/{tool}', '--help')
    assert done.returncode == 0, done.stderr
    assert 'usage:' in done.stdout
    description = done.stdout.split('\n\n')[1]
    assert len(description.split()) > 4


@pytest.mark.parametrize('tool', ['train.py', 'test.py', 'export.py', 'predict.py', 'reproduce.py'])
def test_help_does_not_import_torch(tool: str) -> None:
    done = run_fresh([sys.executable, '-X', 'importtime', f'tools/{tool}', '--help'])
    assert 'argparse' in done.stderr
    assert not re.search(r'\| +torch$', done.stderr, re.MULTILINE)


INVALID = {
    'missing config': (['tools/train.py', 'nowhere.py'], "config 'nowhere.py' does not exist"),
    'config name': (
        ['tools/train.py', 'inline-pvt-mikro_digits'],
        "config 'inline-pvt-mikro_digits' does not exist: did you mean inline-pvt-",
    ),
    'missing data': (
        [
            'tools/train.py',
            CLASSIFIER,
            '--cfg-options',
            'train_dataloader.dataset.data_root=/no/digit_scenes',
        ],
        "data folder '/no/digit_scenes' of train_dataloader does not exist: create it with",
    ),
    'missing checkpoint': (['tools/test.py', CLASSIFIER, 'gone.pth'], "checkpoint 'gone.pth' does not exist"),
    'missing pretrained': (
        ['tools/train.py', CLASSIFIER, '--pretrained', 'gone.pth', '{options}'],
        "'gone.pth' does not exist",
    ),
    'missing resume': (
        ['tools/train.py', CLASSIFIER, '--resume', 'gone.pth', '{options}'],
        "'gone.pth' does not exist",
    ),
    'unknown arch': (
        ['tools/train.py', CLASSIFIER, '{options}', 'model.backbone.arch=huge'],
        "unknown arch 'huge': choose one of nano, micro, tiny, small, medium, large, or give a dict",
    ),
    # The data folder is missing as well: the unknown key is reported first.
    'unknown key of the backbone': (
        [
            'tools/train.py',
            CLASSIFIER,
            '--cfg-options',
            'train_dataloader.dataset.data_root=/no/digit_scenes',
            'model.backbone.drop_path=0.1',
        ],
        "model.backbone: unknown argument 'drop_path' of InLinePVT: it takes",
    ),
    'small images': (
        ['tools/train.py', CLASSIFIER, '{options}', 'train_dataloader.dataset.pipeline.1.scale=24'],
        'image of 24×24 pixels: each side must be at least 32',
    ),
    'option without value': (
        ['tools/train.py', CLASSIFIER, '--cfg-options', 'lr'],
        "--cfg-options 'lr': must be key=value",
    ),
    'unknown flag': (['tools/train.py', CLASSIFIER, '--fast'], '--fast'),
    'no base batch size': (
        ['tools/train.py', CLASSIFIER, '--auto-scale-lr'],
        'auto_scale_lr.base_batch_size',
    ),
    'launcher without torchrun': (
        ['tools/train.py', CLASSIFIER, '--launcher', 'pytorch', '{options}'],
        'RANK is not set: start with tools/dist_train.sh or torchrun',
    ),
    'NPROC not a number': (
        ['tools/dist_train.sh', CLASSIFIER, 'two'],
        "NPROC is 'two': must be an integer",
    ),
    'NPROC zero': (
        ['tools/dist_train.sh', CLASSIFIER, '0'],
        "NPROC is '0': must be an integer, at least 1",
    ),
    'dist missing config': (['tools/dist_train.sh', 'nowhere.py', '2'], "config 'nowhere.py' does not exist"),
    'dist usage': (['tools/dist_test.sh', CLASSIFIER], 'usage: tools/dist_test.sh CONFIG CHECKPOINT NPROC'),
    'dist missing checkpoint': (
        ['tools/dist_test.sh', CLASSIFIER, 'gone.pth', '2'],
        "checkpoint 'gone.pth' does not exist",
    ),
    'slurm missing config': (
        ['tools/slurm_train.sh', 'part', 'job', 'inline-pvt-mikro_digits', 'out'],
        "config 'inline-pvt-mikro_digits' does not exist: did you mean inline-pvt-",
    ),
}


@pytest.mark.parametrize('case', INVALID)
def test_invalid_arguments_give_one_error_line(case: str, digit_scenes: Path, tmp_path: Path) -> None:
    command, expected = INVALID[case]
    args: list[str] = []
    for word in command:
        args += (
            classification(digit_scenes)
            if word == '{options}'
            else [word.format(data=digit_scenes / 'classification')]
        )
    if command[0].endswith('.py'):
        args += ['--work-dir', str(tmp_path)]
    done = run_tool(*args)
    assert done.returncode == 2, done.stderr[-2000:]
    assert 'Traceback' not in done.stderr
    errors = [line for line in done.stderr.splitlines() if 'error: ' in line]
    assert len(errors) == 1, done.stderr[-2000:]
    assert expected in errors[0]


@pytest.mark.parametrize(('batch', 'program'), [('0', 'srun'), ('1', 'sbatch')])
def test_missing_slurm_is_reported(batch: str, program: str, tmp_path: Path) -> None:
    """PATH contains only the programs that the script needs, never those of SLURM."""
    path = link_programs(tmp_path / 'bin', 'bash', 'dirname')
    args = ('part', 'job', CLASSIFIER, str(tmp_path / 'out'))
    done = run_tool('tools/slurm_train.sh', *args, PATH=path, BATCH=batch)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f'error: {program} is not found: this script needs SLURM; without it use tools/dist_train.sh'
    ]


@pytest.mark.parametrize('checkpoint', ['user/model', 'https://example.org/a.pth', 'published'])
def test_launch_scripts_accept_checkpoints_that_are_not_files(checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / 'published').mkdir()
    command = ['bash', '-c', 'source "$1"; check_checkpoint "$2"', 'bash', ROOT / 'tools/dist_common.sh']
    subprocess.run([*command, checkpoint], cwd=tmp_path, check=True)


@pytest.mark.parametrize('name', ['dist_train', 'dist_test', 'slurm_train', 'slurm_test'])
def test_shell_scripts_print_their_usage(name: str) -> None:
    done = run_tool(f'tools/{name}.sh', '--help')
    assert done.returncode == 0
    assert f'Usage: tools/{name}.sh ' in done.stdout
    assert '#' not in done.stdout


def test_slurm_script_requests_the_resources_of_the_environment(tmp_path: Path) -> None:
    """Uses a fake srun that prints its arguments."""
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    path = f'{tmp_path}:/usr/bin:/bin'
    done = run_tool(
        'tools/slurm_train.sh',
        'part',
        'job',
        CLASSIFIER,
        'out',
        '--amp',
        PATH=path,
        GPUS='16',
        GPUS_PER_NODE='8',
        SRUN_ARGS='--time=1 --quiet',
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split('\n')
    assert {
        '-p',
        'part',
        '--job-name=job',
        '--gres=gpu:8',
        '--ntasks=16',
        '--ntasks-per-node=8',
        '--time=1',
    } <= set(printed)
    assert printed[printed.index('--amp') - 2 :][:5] == ['--work-dir', 'out', '--amp', '--launcher', 'slurm']
    assert str(ROOT / 'tools' / 'train.py') in printed
