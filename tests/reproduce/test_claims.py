"""Verdicts on the paper's claims: the same rules whichever way the figures go."""

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest

from inline.reproduce.ablations import Outcome
from inline.reproduce.claims import (
    HELD,
    OPEN,
    REFUTED,
    Evidence,
    compare_means,
    judge,
    read_collisions,
    read_locality,
    read_outcomes,
    read_probes,
    write_page,
)
from tests.report.report_helpers import EVIL_NAMES, Page, assert_harmless

ACCURACIES = {
    'softmax': (80.0, 82.0, 81.0),
    'linear': (70.0, 71.0, 69.0),
    'linear_injective': (70.5, 71.5, 69.5),
    'linear_residual': (60.0, 61.0, 62.0),
    'inline': (81.0, 82.0, 81.5),
}
EVIDENCE = Evidence(
    outcomes=[
        Outcome(row, seed, v, 1.0) for row, values in ACCURACIES.items() for seed, v in enumerate(values)
    ],
    collisions=[
        {
            'softmax': 2.0 + seed,
            'linear': 9.0 + seed,
            'linear_injective': 10.0 - seed,
            'linear_residual': 8.0,
            'inline': 0.0,
        }
        for seed in range(3)
    ],
    locality=[
        {row: ((20.0 if row == 'linear' else 10.0) + seed, None, 13.8) for row in ACCURACIES}
        for seed in range(3)
    ],
    probes={
        ('length', 'Linear-relu'): [25.0],
        ('length', 'Softmax'): [90.0],
        ('length', 'InLine'): [95.0],
        ('neighbour', 'InLine-no-residual'): [10.0],
        ('neighbour', 'InLine'): [30.0],
    },
    levels={'length': (25.0, 100.0), 'neighbour': (10.0, 100.0)},
)


def test_verdicts_follow_the_figures() -> None:
    verdicts = [claim.verdict for claim in judge(EVIDENCE)]
    assert verdicts == [HELD, HELD, OPEN, REFUTED, REFUTED, OPEN, REFUTED, HELD, HELD]


def test_a_tie_with_softmax_is_a_match_and_a_loss_is_not() -> None:
    worse = [replace(o, accuracy=o.accuracy - 9) if o.row == 'inline' else o for o in EVIDENCE.outcomes]
    assert judge(replace(EVIDENCE, outcomes=worse))[-1].verdict == REFUTED


def test_means_differ_by_two_standard_errors() -> None:
    # Variances 1 and 1 over 3 seeds each: the error of the difference is √(2/3) = 0.816.
    assert compare_means((1.0, 2.0, 3.0), (0.0, 1.0, 2.0)) == 0
    assert compare_means((3.0, 4.0, 5.0), (1.0, 2.0, 3.0)) == 1
    assert compare_means((1.0, 2.0, 3.0), (3.0, 4.0, 5.0)) == -1
    # No spread at all: any difference is one.
    assert compare_means((0.0, 0.0), (0.1, 0.1)) == -1
    assert compare_means((0.0, 0.0), (0.0, 0.0)) == 0


def test_of_one_seed_no_difference_is_told() -> None:
    assert compare_means((2.0,), (1.0,)) is None
    assert compare_means((2.0,), (1.0, 1.1)) is None
    one = replace(
        EVIDENCE,
        outcomes=[outcome for outcome in EVIDENCE.outcomes if outcome.seed == 0],
        collisions=EVIDENCE.collisions[:1],
        locality=EVIDENCE.locality[:1],
    )
    # The probes are passed or not, whatever the number of seeds; a match with softmax is not told either.
    assert [claim.verdict for claim in judge(one)] == [HELD, OPEN, OPEN, OPEN, REFUTED, *4 * [OPEN]]
    assert judge(one)[1].measured == 'colliding pairs of queries an image: linear 9.0, softmax 2.0'


def test_a_difference_smaller_than_the_spread_is_none() -> None:
    """Collisions and locality are judged as accuracies are: over the models of all seeds."""
    counts = zip(EVIDENCE.collisions, (0.0, 9.0, 40.0), strict=True)
    collisions = [{**models, 'linear': count} for models, count in counts]
    claim = judge(replace(EVIDENCE, collisions=collisions))[1]
    assert claim.verdict == OPEN
    assert claim.measured == 'colliding pairs of queries an image: linear 16.3 ± 21.0, softmax 3.0 ± 1.0'
    shares = [{**models, 'linear': (11.0, None, 13.8)} for models in EVIDENCE.locality]
    assert judge(replace(EVIDENCE, locality=shares))[3].verdict == OPEN


def test_what_the_tools_write_is_read(tmp_path: Path) -> None:
    (tmp_path / 'results.csv').write_text('row,seed,top1,minutes\ninline,2,81.50,1.25\n')
    assert read_outcomes(tmp_path / 'results.csv') == [Outcome('inline', 2, 81.5, 1.25)]
    (tmp_path / 'injectivity.csv').write_text(
        'model,image,layer,head,colliding pairs,pairs\n'
        'linear,0,1,1,3,10\nlinear,0,1,2,1,10\nlinear,1,1,1,0,10\nlinear,1,1,2,0,10\nInLine,0,1,1,5,10\n'
    )
    assert read_collisions(tmp_path / 'injectivity.csv') == {'linear': 2.0, 'inline': 5.0}
    (tmp_path / 'locality.csv').write_text(
        'model,layer,attention (%),with local terms (%),chance (%)\n'
        'InLine,1,10,30,5\nInLine,2,20,50,5\nlinear + injectivity,1,4,,5\n'
    )
    assert read_locality(tmp_path / 'locality.csv') == {
        'inline': (15.0, 40.0, 5.0),
        'linear_injective': (4.0, None, 5.0),
    }
    (tmp_path / 'runs.csv').write_text(
        'task,mixer,seed,steps,accuracy,chance,best,config,settings\n'
        'length,InLine,0,9,0.5,0.25,1.0,x,y\nlength,InLine,1,9,0.75,0.25,1.0,x,y\n'
    )
    assert read_probes(tmp_path / 'runs.csv') == (
        {('length', 'InLine'): [50.0, 75.0]},
        {'length': (25.0, 100.0)},
    )


def test_the_page_shows_everything_and_escapes_names(tmp_path: Path) -> None:
    picture = tmp_path / 'figure.png'
    picture.write_bytes(b'not really a picture')
    settings = {'Machine': '<script>alert(1)</script>'}
    write_page(EVIDENCE, {'a <b>caption</b>': picture}, settings, tmp_path / 'report.html')
    page = (tmp_path / 'report.html').read_text()
    assert '<script' not in page
    assert 'a &lt;b&gt;caption' in page
    assert base64.b64encode(picture.read_bytes()).decode() in page
    assert page.count(f'>{REFUTED}<') == 3
    assert '4 of 9 claims held' in re.sub(r'\s+', ' ', page)
    for figure in ('81.5 ± 0.5', '3.0 ± 1.0', '21.0 ± 1.0'):
        assert f'>{figure}<' in page


@pytest.mark.parametrize('evil', EVIL_NAMES)
def test_no_caption_or_setting_becomes_part_of_the_page(evil: str, tmp_path: Path) -> None:
    (tmp_path / 'figure.png').write_bytes(b'not really a picture')
    write_page(EVIDENCE, {evil: tmp_path / 'figure.png'}, {evil: evil}, tmp_path / 'report.html')
    html = (tmp_path / 'report.html').read_text()
    assert_harmless(html, num_scripts=0)
    assert Page(html).text.count(evil) == 3
    assert Page(html).attributes('img')[0]['alt'] == evil


@pytest.mark.slow
def test_a_data_root_without_the_data_is_told_before_the_probes(tmp_path: Path) -> None:
    from tests.conftest import run_tool

    done = run_tool('tools/claims.py', '--data-root', tmp_path, '--work-dir', tmp_path / 'claims')
    assert done.returncode == 2
    assert done.stderr.endswith("has no folder 'digit_scenes': leave it out to make one\n")
    assert not (tmp_path / 'claims').exists()


@pytest.mark.slow
@pytest.mark.parametrize('flag', ['--seeds', '--images', '--probe-steps'])
def test_a_number_below_one_is_refused(flag: str) -> None:
    from tests.conftest import run_tool

    done = run_tool('tools/claims.py', flag, '0')
    assert (done.returncode, done.stderr) == (2, f'error: {flag} 0: must be at least 1\n')


@pytest.mark.slow
def test_the_tool_from_probes_to_page(digit_scenes: Path, tmp_path: Path) -> None:
    from tests.conftest import run_tool

    quick = [f'{split}_dataloader.{key}' for split in ('train', 'val') for key in ('num_workers=0',)]
    done = run_tool(
        'tools/claims.py', '--seeds', '2', '--images', '2', '--probe-steps', '1', '--work-dir', tmp_path,
        '--data-root', digit_scenes.parent, '--cfg-options', 'train_cfg.max_iters=2',
        'train_cfg.val_interval=2',
        'default_hooks.checkpoint.interval=2', 'train_dataloader.batch_size=4',
        'train_dataloader.persistent_workers=False', 'val_dataloader.persistent_workers=False', *quick,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / 'report.html').read_text()
    assert page.count('<img ') == 4
    assert page.count('class="verdict') == 9
    # Accuracy, collisions and share of attention of five rows, and the share with local terms of two.
    assert page.split('id="parts"')[1].count(' ± ') == 17
