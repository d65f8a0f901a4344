"""Verdicts on the claims of the paper, the page that shows them, and the tool that measures them."""

import base64
import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inline.analysis.probe_runs import ProbeRun, plan_runs
from inline.reproduce.claims import (
    HELD,
    INCONCLUSIVE,
    NOT_HELD,
    Evidence,
    compare_means,
    judge,
    read_accuracies,
    read_collisions,
    read_locality,
    read_probes,
    write_markdown,
    write_page,
)
from inline.utils.errors import UserError
from inline.utils.tables import read_csv
from tests.conftest import run_tool
from tests.reproduce.report.report_helpers import MALICIOUS_NAMES, Page, assert_harmless

ACCURACIES = {
    'softmax': (80.0, 82.0, 81.0),
    'linear': (70.0, 71.0, 69.0),
    'linear_injective': (70.5, 71.5, 69.5),
    'linear_residual': (60.0, 61.0, 62.0),
    'inline': (81.0, 82.0, 81.5),
}
EVIDENCE = Evidence(
    accuracies=ACCURACIES,
    collisions={
        'softmax': [2.0, 3.0, 4.0],
        'linear': [9.0, 10.0, 11.0],
        'linear_injective': [10.0, 9.0, 8.0],
        'linear_residual': [8.0, 8.0, 8.0],
        'inline': [0.0, 0.0, 0.0],
    },
    locality={row: [20.0, 21.0, 22.0] if row == 'linear' else [10.0, 11.0, 12.0] for row in ACCURACIES},
    locality_with_local={row: [40.0, 41.0, 42.0] if row == 'inline' else [] for row in ACCURACIES},
    uniform_locality=13.8,
    probes={
        ('length', 'Linear-relu'): [25.0],
        ('length', 'Softmax'): [90.0],
        ('length', 'InLine'): [95.0],
        ('neighbour', 'InLine-no-residual'): [10.0],
        ('neighbour', 'InLine'): [30.0],
    },
    levels={'length': (25.0, 100.0), 'neighbour': (10.0, 100.0)},
)


def test_verdicts_follow_the_measurements() -> None:
    verdicts = [claim.verdict for claim in judge(EVIDENCE)]
    assert verdicts == [HELD, HELD, INCONCLUSIVE, NOT_HELD, NOT_HELD, INCONCLUSIVE, NOT_HELD, HELD, HELD]


def test_a_tie_with_softmax_is_a_match_and_a_loss_is_not() -> None:
    worse = {**ACCURACIES, 'inline': [value - 9 for value in ACCURACIES['inline']]}
    assert judge(replace(EVIDENCE, accuracies=worse))[-1].verdict == NOT_HELD


def test_means_differ_by_two_standard_errors() -> None:
    # Variances 1 and 1 over 3 seeds each: the error of the difference is √(2/3) = 0.816.
    assert compare_means((1.0, 2.0, 3.0), (0.0, 1.0, 2.0)) == 0
    assert compare_means((3.0, 4.0, 5.0), (1.0, 2.0, 3.0)) == 1
    assert compare_means((1.0, 2.0, 3.0), (3.0, 4.0, 5.0)) == -1
    # Without spread, any difference counts.
    assert compare_means((0.0, 0.0), (0.1, 0.1)) == -1
    assert compare_means((0.0, 0.0), (0.0, 0.0)) == 0


def test_comparisons_with_one_seed_are_inconclusive() -> None:
    assert compare_means((2.0,), (1.0,)) is None
    assert compare_means((2.0,), (1.0, 1.1)) is None
    single_seed = replace(
        EVIDENCE,
        **{
            name: {row: values[:1] for row, values in getattr(EVIDENCE, name).items()}
            for name in ('accuracies', 'collisions', 'locality')
        },
    )
    # Probes do not depend on the number of seeds. Even the match with softmax is inconclusive.
    assert [claim.verdict for claim in judge(single_seed)] == [
        HELD,
        INCONCLUSIVE,
        INCONCLUSIVE,
        INCONCLUSIVE,
        NOT_HELD,
        *4 * [INCONCLUSIVE],
    ]
    assert judge(single_seed)[1].measured == 'colliding query pairs per image: linear 9.0, softmax 2.0'


def test_a_difference_within_the_spread_is_inconclusive() -> None:
    """Collisions and locality are compared over all seeds, like accuracies."""
    collisions = {**EVIDENCE.collisions, 'linear': [0.0, 9.0, 40.0]}
    claim = judge(replace(EVIDENCE, collisions=collisions))[1]
    assert claim.verdict == INCONCLUSIVE
    assert claim.measured == 'colliding query pairs per image: linear 16.3 ± 21.0, softmax 3.0 ± 1.0'
    locality = {**EVIDENCE.locality, 'linear': [11.0, 11.0, 11.0]}
    assert judge(replace(EVIDENCE, locality=locality))[3].verdict == INCONCLUSIVE


def test_files_of_the_tools_are_read(tmp_path: Path) -> None:
    (tmp_path / 'results.csv').write_text('row,seed,top1\ninline,0,81.50\nlinear,0,70.00\ninline,1,80.00\n')
    assert read_accuracies(tmp_path / 'results.csv') == {'inline': [81.5, 80.0], 'linear': [70.0]}
    models = ('softmax', 'linear', 'linear + injectivity', 'linear + residual', 'InLine')
    for seed in (0, 1):
        # Two images, each with two heads; model i has i and 2 i collisions.
        lines = [
            f'{m},{image},1,{h},{i * h + seed},10'
            for i, m in enumerate(models)
            for image in 'ab'
            for h in (1, 2)
        ]
        header = 'model,image,layer,head,colliding pairs,pairs'
        (tmp_path / f'injectivity{seed}.csv').write_text('\n'.join([header, *lines]))
        lines = [
            f'{m},{layer},{10 * layer + seed},{"" if i < 3 else 50},5'
            for i, m in enumerate(models)
            for layer in (1, 2)
        ]
        header = 'model,layer,attention (%),with local terms (%),chance (%)'
        (tmp_path / f'locality{seed}.csv').write_text('\n'.join([header, *lines]))
    collisions = read_collisions([tmp_path / f'injectivity{seed}.csv' for seed in (0, 1)])
    assert (collisions['softmax'], collisions['inline']) == ([0.0, 2.0], [12.0, 14.0])
    paths = [tmp_path / f'locality{seed}.csv' for seed in (0, 1)]
    assert read_locality(paths, 'attention (%)')['linear'] == [15.0, 16.0]
    with_local = read_locality(paths, 'with local terms (%)')
    assert (with_local['inline'], with_local['linear_injective']) == ([50.0, 50.0], [])


def write_probes(path: Path, scores: Sequence[tuple[ProbeRun, float]]) -> None:
    lines = [{**run.key(), 'accuracy': value, 'chance': 0.25, 'best': 1.0} for run, value in scores]
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def test_probes_of_other_settings_are_not_judged(tmp_path: Path) -> None:
    """A short earlier run in the same file must not change the verdict."""
    short, full = (plan_runs(['length'], ['InLine', 'Softmax'], 2, steps) for steps in (1, 400))
    scores = [*((run, 0.25) for run in short), *((run, 1.0 if run.seed else 0.9) for run in full)]
    write_probes(tmp_path / 'runs.csv', scores)
    accuracies, levels = read_probes(tmp_path / 'runs.csv', full)
    assert accuracies == {('length', 'InLine'): [90.0, 100.0], ('length', 'Softmax'): [90.0, 100.0]}
    assert levels == {'length': (25.0, 100.0)}
    assert read_probes(tmp_path / 'runs.csv', short)[0]['length', 'InLine'] == [25.0, 25.0]


def test_a_missing_probe_is_an_error(tmp_path: Path) -> None:
    write_probes(tmp_path / 'runs.csv', [(plan_runs(['length'], ['InLine'], 1, 1)[0], 0.25)])
    with pytest.raises(UserError, match=r'has no result of .*steps=400'):
        read_probes(tmp_path / 'runs.csv', plan_runs(['length'], ['InLine'], 1, 400))


def test_the_page_shows_everything_and_escapes_names(tmp_path: Path) -> None:
    picture = tmp_path / 'figure.png'
    picture.write_bytes(b'not a PNG file')
    settings = {'Machine': '<script>alert(1)</script>'}
    write_page(EVIDENCE, {'a <b>caption</b>': picture}, settings, tmp_path / 'report.html')
    page = (tmp_path / 'report.html').read_text()
    assert '<script' not in page
    assert 'a &lt;b&gt;caption' in page
    assert base64.b64encode(picture.read_bytes()).decode() in page
    assert page.count(f'>{NOT_HELD}<') == 3
    assert '4 of 9 claims held' in re.sub(r'\s+', ' ', page)
    for figure in ('81.5 ± 0.5', '3.0 ± 1.0', '21.0 ± 1.0'):
        assert f'>{figure}<' in page


def test_the_markdown_file_has_a_line_per_claim(tmp_path: Path) -> None:
    write_markdown(judge(EVIDENCE), {'Machine': 'two cores'}, tmp_path / 'claims.md')
    text = (tmp_path / 'claims.md').read_text()
    rows = [line for line in text.splitlines() if line.startswith('| ')][2:]
    assert len(rows) == 9
    assert sum(row.endswith('| held |') for row in rows) == 4
    assert '- Machine: two cores' in text


@pytest.mark.parametrize('malicious', MALICIOUS_NAMES)
def test_captions_and_settings_cannot_inject_html(malicious: str, tmp_path: Path) -> None:
    (tmp_path / 'figure.png').write_bytes(b'not a PNG file')
    write_page(
        EVIDENCE, {malicious: tmp_path / 'figure.png'}, {malicious: malicious}, tmp_path / 'report.html'
    )
    html = (tmp_path / 'report.html').read_text()
    assert_harmless(html, num_scripts=0)
    assert Page(html).text.count(malicious) == 3
    assert Page(html).attributes('img')[0]['alt'] == malicious


@pytest.mark.slow
def test_a_missing_data_root_is_reported_before_the_probes_run(tmp_path: Path) -> None:
    done = run_tool('tools/claims.py', '--data-root', tmp_path, '--work-dir', tmp_path / 'claims')
    assert done.returncode == 2
    assert done.stderr.endswith("has no folder 'digit_scenes': omit it to create one\n")
    assert not (tmp_path / 'claims').exists()


@pytest.mark.slow
def test_a_number_below_one_is_refused() -> None:
    done = run_tool('tools/claims.py', '--probe-steps', '0')
    assert (done.returncode, done.stderr) == (2, 'error: --probe-steps 0: must be at least 1\n')


QUICK = [
    'train_cfg.max_iters=2', 'train_cfg.val_interval=2', 'default_hooks.checkpoint.interval=2',
    'train_dataloader.batch_size=4',
    *(f'{split}_dataloader.{option}' for split in ('train', 'val')
      for option in ('num_workers=0', 'persistent_workers=False')),
]  # fmt: skip


@pytest.mark.exhaustive
def test_tools_train_analyze_and_judge_without_repeating_runs(digit_scenes: Path, tmp_path: Path) -> None:
    """Run tools/claims.py, which calls tools/ablate.py, then tools/ablate.py on the same runs."""
    data = ['--data-root', digit_scenes.parent]
    done = run_tool(
        'tools/claims.py', '--seeds', '1', '--images', '1', '--probe-steps', '1', '--work-dir', tmp_path,
        *data, '--cfg-options', *QUICK, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / 'report.html').read_text()
    assert page.count('<img ') == 4
    assert page.count('class="verdict') == 9
    # Accuracy, collisions and locality of five rows, and locality with local terms of two.
    numbers = re.findall(r'class="number">([\d.,]+)<', page.split('id="components"')[1])
    assert len(numbers) == 17
    assert (tmp_path / 'claims.md').read_text().count('\n| ') == 11

    folder = tmp_path / 'components'
    assert 'InLine,' in (folder / 'table.csv').read_text()
    assert (folder / 'figure.png').stat().st_size > 10_000
    again = run_tool(
        'tools/ablate.py', 'parts', '--rows', 'softmax', 'inline', *data, '--out', folder,
        '--results', tmp_path / 'measured', '--cfg-options', *QUICK,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.count('already measured') == 2
    assert 'training, log in' not in again.stdout
    lines = read_csv(folder / 'results.csv')
    assert [(line['row'], line['seed']) for line in lines] == [('softmax', '0'), ('inline', '0')]
    for column in ('commit', 'hardware', 'versions', 'date', 'config_digest', 'data_digest'):
        assert lines[0][column]
    assert len({line['config_digest'] for line in lines}) == 2
    assert float(lines[1]['locality_with_local']) > float(lines[1]['locality']) > 0
    table = (folder / 'table.md').read_text()
    assert '| InLine | predicted |' in table
    assert '| linear |  |' in table
    assert '| not measured |' in table
    assert (folder / 'speed_accuracy.png').stat().st_size > 10_000
    summary = run_tool(
        'tools/ablate.py',
        'parts',
        '--summarize',
        '--results',
        tmp_path / 'measured',
        '--out',
        tmp_path / 'again',
    )
    assert summary.returncode == 0, summary.stderr[-2000:]
    assert (tmp_path / 'again' / 'table.md').read_text() == table
