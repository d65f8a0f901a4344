"""The demo's report: correct numbers, no external references, and a page that a browser displays."""

import pickle
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from report_helpers import (
    MALICIOUS_NAMES,
    Page,
    assert_harmless,
    fabricate_demo,
    training_line,
    write_scalars,
    write_test_metrics,
)

from inline.engine.logs import Curve, read_scalars, training_minutes
from inline.reproduce.generated_files import table_source
from inline.reproduce.report import (
    RunResult,
    collect_results,
    compare_starts,
    format_table,
    write_csv,
    write_report,
)
from inline.reproduce.report.page import draw_chart
from inline.reproduce.report.samples import Sample
from inline.utils.errors import UserError
from tests.checkpoints.malicious import RunsCode

SETTINGS = {'Hardware': '2 cores', 'Commit': 'abc1234', 'Seed': '0'}
NUM_CHARTS = 6
# The small dataset gives 20 tiles, and 4 scenes: three pictures for detection, four for segmentation.
NUM_IMAGES = 20 + 4 * 3 + 4 * 4


@pytest.fixture(scope='module')
def results(tmp_path_factory: pytest.TempPathFactory, digit_scenes: Path) -> list[RunResult]:
    demo_dir = tmp_path_factory.mktemp('demo')
    fabricate_demo(demo_dir, digit_scenes)
    return collect_results(demo_dir)


@pytest.fixture(scope='module')
def report(results: list[RunResult], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('report') / 'new folder' / 'report.html'
    write_report(results, out, SETTINGS)
    return out


@pytest.fixture(scope='module')
def missing_runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunResult]:
    return collect_results(tmp_path_factory.mktemp('empty'))


def by_name(results: list[RunResult]) -> dict[str, RunResult]:
    return {result.name: result for result in results}


def test_the_csv_file_has_provenance_that_pages_do_not_show(results: list[RunResult], tmp_path: Path) -> None:
    provenance = {'classification': {'commit': 'abc1234'}, 'detection': {'commit': 'def5678'}}
    write_csv(results, provenance, tmp_path / 'results.csv')
    lines = (tmp_path / 'results.csv').read_text().splitlines()
    assert [word in line for word, line in (('abc1234', lines[1]), ('def5678', lines[2]))] == [True, True]
    header, *rows = table_source(str(tmp_path / 'results.csv'))
    assert (header[0], header[-1], len(rows)) == ('task', 'minutes', 5)


def with_ap50(results: list[RunResult], **values: float | None) -> list[RunResult]:
    return [
        replace(run, metrics={**run.metrics, 'box AP50': values[run.name]}) if run.name in values else run
        for run in results
    ]


def test_resumed_session_replaces_repeated_steps(tmp_path: Path) -> None:
    run = tmp_path / 'detection'
    first = [training_line(10, 3.0), training_line(20, 2.5), {'coco/bbox_mAP_50': 0.1, 'step': 20}]
    first += [training_line(30, 9.0)]
    resumed = [training_line(30, 2.0), {'coco/bbox_mAP_50': -1.0, 'step': 30}]
    resumed += [training_line(40, 1.5, time=4.0), {'coco/bbox_mAP_50': 0.3, 'time': 99.0, 'step': 40}]
    write_scalars(run, '20260101_000000', first)
    write_scalars(run, '20260101_010000', resumed)
    write_scalars(run, '20260101_020000', [])
    (run / '20260101_030000' / 'vis_data').mkdir(parents=True)

    result = by_name(collect_results(tmp_path))['detection']
    assert result.curves['loss'] == Curve((10, 20, 30, 40), (3.0, 2.5, 2.0, 1.5))
    # COCO's -1 means that there was nothing to evaluate.
    assert result.curves['box AP50'] == Curve((20, 40), (10.0, 30.0))
    assert result.iterations == 40
    # 30 iterations of one second and 10 of four; validation does not count.
    assert result.minutes == pytest.approx(70 / 60)


def test_new_run_in_the_same_folder_replaces_the_old_one(tmp_path: Path) -> None:
    write_scalars(tmp_path, '20260101_000000', [training_line(step, 5.0) for step in (10, 20, 30)])
    write_scalars(tmp_path, '20260102_000000', [training_line(step, 1.0) for step in (10, 20)])
    assert [(line['step'], line['loss']) for line in read_scalars(tmp_path)] == [(10, 1.0), (20, 1.0)]


@pytest.mark.parametrize('resumed', [[], [training_line(30, 2.0)]])
def test_repeated_validation_keeps_earlier_training_steps(resumed: list, tmp_path: Path) -> None:
    first = [training_line(10, 4.0), training_line(20, 3.0), {'accuracy': 50.0, 'step': 20}]
    write_scalars(tmp_path, '20260101_000000', [*first, training_line(30, 9.0)])
    write_scalars(tmp_path, '20260102_000000', [{'accuracy': 50.0, 'step': 20}, *resumed])
    assert read_scalars(tmp_path) == [*first, *resumed]


def test_truncated_line_is_skipped(tmp_path: Path) -> None:
    write_scalars(tmp_path, '20260101_000000', [training_line(10, 5.0)])
    with (tmp_path / '20260101_000000' / 'vis_data' / 'scalars.json').open('a') as file:
        file.write('\n{"loss": 1.0, "st')
    assert [line['step'] for line in read_scalars(tmp_path)] == [10]
    assert training_minutes([]) is None


def test_newest_test_counts_and_percentages_are_not_scaled(tmp_path: Path) -> None:
    write_test_metrics(tmp_path / 'segmentation', '20260101_000000', {'mIoU': 10.0, 'aAcc': 20.0})
    write_test_metrics(tmp_path / 'segmentation', '20260102_000000', {'mIoU': 61.44, 'aAcc': float('nan')})
    (tmp_path / 'segmentation' / 'test' / '20260103_000000').mkdir()
    assert by_name(collect_results(tmp_path))['segmentation'].metrics == {'mIoU': 61.44, 'aAcc': None}


def test_table(results: list[RunResult]) -> None:
    header, _, *rows = [re.split(r'\s{2,}', line) for line in format_table(results).splitlines()]
    names = 'task|model|top-1|box AP|box AP50|mask AP|mask AP50|mIoU|aAcc|iterations|minutes'
    assert header == names.split('|')
    assert rows == [
        ['Classification', 'InLine-PVT', '91.2', '1,000', '5.0'],
        ['Detection, fine-tuned', 'Mask R-CNN', '41.2', '70.6', '35.4', '64.2', '1,000', '5.0'],
        ['Detection, from scratch', 'Mask R-CNN', '12.3', '29.5', '10.1', '24.9', '1,000', '5.0'],
        ['Segmentation, fine-tuned', 'Semantic FPN', '61.4', '93.5', '1,000', '5.0'],
        ['Segmentation, from scratch', 'Semantic FPN', '40.0', '88.0', '1,000', '5.0'],
    ]


@pytest.mark.parametrize(
    ('tuned', 'scratch', 'expected'),
    [
        (70.6, 29.5, 'box AP50 70.6, 41.1 points above the 29.5'),
        (29.5, 70.6, 'box AP50 29.5, 41.1 points below the 70.6'),
        (29.51, 29.49, 'box AP50 29.5, the same as the 29.5'),
        (29.5, None, 'cannot be compared'),
    ],
)
def test_comparison_states_the_difference(
    results: list[RunResult], tuned: float, scratch: float | None, expected: str
) -> None:
    detection, segmentation = compare_starts(with_ap50(results, detection=tuned, detection_scratch=scratch))
    assert expected in detection
    assert detection.count('. ') == 0
    assert 'the segmentor fine-tuned from the packaged weights reaches mIoU 61.4, 21.4 points' in segmentation


def test_comparison_mentions_different_training_lengths(results: list[RunResult]) -> None:
    assert all(line.startswith('After 1,000 iterations each') for line in compare_starts(results))
    shorter = [replace(run, iterations=500) if run.name == 'detection_scratch' else run for run in results]
    assert compare_starts(shorter)[0].startswith(
        'After 1,000 and 500 iterations (different training lengths)'
    )


def test_missing_runs_are_dashes(missing_runs: list[RunResult], tmp_path: Path) -> None:
    table = format_table(missing_runs)
    # One dash for each metric, the iterations and the minutes.
    assert [line.count('–') for line in table.splitlines()[2:]] == [3, 6, 6, 4, 4]
    write_report(missing_runs, tmp_path / 'report.html', {})
    page = Page((tmp_path / 'report.html').read_text())
    assert not page.attributes('svg')
    assert not page.attributes('img')
    assert page.text.count('nothing logged') == NUM_CHARTS
    assert page.text.count('no predictions') == 3


def test_page_with_one_run(results: list[RunResult], tmp_path: Path) -> None:
    write_report([by_name(results)['detection_scratch']], tmp_path / 'report.html', SETTINGS)
    page = Page((tmp_path / 'report.html').read_text())
    assert len(page.attributes('img')) == 4 * 2
    assert 'cannot be compared' in page.text


def test_page_has_no_external_references(report: Path) -> None:
    html = report.read_text()
    page = Page(html)
    for tag, attributes in page.tags:
        for name in {'src', 'href', 'xlink:href', 'srcset', 'data', 'action', 'poster'} & attributes.keys():
            assert re.match(r'data:image/jpeg;base64,|#', attributes[name] or ''), (tag, name)
    assert 'link' not in {tag for tag, _ in page.tags}
    assert '@import' not in html
    assert all(target.startswith('#') for target in re.findall(r'url\(["\']?([^)]*)', html))
    # XML namespaces look like URLs, but browsers do not request them.
    assert {url for url in re.findall(r'https?://[^\s"<]+', html) if 'www.w3.org' not in url} == set()
    assert len(html) < 5e6


def test_page_shows_all_numbers_charts_and_images(report: Path) -> None:
    page = Page(report.read_text())
    for expected in ('91.2', '70.6', '29.5', '61.4', '41.1 points above', 'training iterations', 'abc1234'):
        assert expected in page.text
    assert len(page.attributes('svg')) == NUM_CHARTS
    assert len(page.attributes('img')) == NUM_IMAGES
    assert all(image['alt'] for image in page.attributes('img'))


def test_wrong_predictions_are_marked(report: Path, results: list[RunResult]) -> None:
    tiles = by_name(results)['classification'].samples
    wrong = [tile for tile in tiles if not tile.correct]
    assert len(wrong) == 4
    page = Page(report.read_text())
    classes = [(figure.get('class') or '').split() for figure in page.attributes('figure')]
    assert ['wrong' in names for names in classes if 'tile' in names] == [not tile.correct for tile in tiles]
    assert page.text.count('✗') == len(wrong)
    for tile in tiles:
        predicted, true = re.findall(r'^(\d) \(82%\), true (\d)$', tile.note)[0]
        assert (predicted == true) == tile.correct


def test_both_detectors_show_the_same_scenes(results: list[RunResult]) -> None:
    tuned, scratch = (by_name(results)[name].samples for name in ('detection', 'detection_scratch'))
    assert [sample.image for sample in tuned] == [sample.image for sample in scratch]
    for left, right in zip(tuned, scratch, strict=True):
        assert left.panels['Ground truth'] == right.panels['Ground truth']
        # The fabricated scores are 0.9 and 0.6 against 0.55 and 0.25, of which 0.25 is not drawn.
        assert left.panels['Prediction'].description.count(',') >= right.panels[
            'Prediction'
        ].description.count(',')


def test_malicious_names_are_escaped_in_the_page(results: list[RunResult], tmp_path: Path) -> None:
    """All strings in one page: each must appear unchanged as text."""
    malicious = ' '.join(MALICIOUS_NAMES)

    def rename(sample: Sample) -> Sample:
        panels = {name: replace(panel, description=malicious) for name, panel in sample.panels.items()}
        return replace(sample, image=malicious, note=malicious, panels=panels)

    renamed = [
        replace(run, title=malicious, model=malicious, samples=[rename(sample) for sample in run.samples])
        for run in results
    ]
    write_report(renamed, tmp_path / 'report.html', {malicious: malicious})
    html = (tmp_path / 'report.html').read_text()
    assert_harmless(html, num_scripts=1)
    page = Page(html)
    # Headline, table and setting, each twice or once per run, and a note per sample.
    assert page.text.count(malicious) >= 2 + 3 * len(results) + sum(len(run.samples) for run in results) - 4
    assert all(malicious in (image['alt'] or '') for image in page.attributes('img'))


@pytest.mark.parametrize('malicious', MALICIOUS_NAMES)
def test_malicious_names_are_escaped_in_charts(malicious: str) -> None:
    chart = draw_chart(
        malicious, malicious, {malicious: Curve((1, 2), (0.5, 0.25)), 'other': Curve((1,), (0.5,))}
    )
    assert chart is not None
    assert_harmless(str(chart), num_scripts=0)
    assert Page(str(chart)).text.count(malicious) == 2, 'the axis and the legend show the name unchanged'


def test_page_is_deterministic(report: Path, results: list[RunResult], tmp_path: Path) -> None:
    write_report(results, tmp_path / 'again.html', SETTINGS)
    assert (tmp_path / 'again.html').read_bytes() == report.read_bytes()


def test_missing_image_raises(tmp_path: Path) -> None:
    folder = tmp_path / 'classification' / 'test'
    folder.mkdir(parents=True)
    label = torch.tensor([1])
    prediction = {
        'img_path': 'gone/1.jpg',
        'pred_label': label,
        'gt_label': label,
        'pred_score': torch.ones(10),
    }
    (folder / 'predictions.pkl').write_bytes(pickle.dumps([prediction]))
    with pytest.raises(UserError, match=r'cannot read gone/1\.jpg'):
        collect_results(tmp_path)


def test_truncated_predictions_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / 'detection' / 'test'
    folder.mkdir(parents=True)
    (folder / 'predictions.pkl').write_bytes(pickle.dumps([{'img_path': 'x'}])[:-8])
    assert by_name(collect_results(tmp_path))['detection'].samples == []


def test_code_in_predictions_is_not_executed(tmp_path: Path) -> None:
    folder = tmp_path / 'detection' / 'test'
    folder.mkdir(parents=True)
    (folder / 'predictions.pkl').write_bytes(pickle.dumps([RunsCode(tmp_path / 'trace')]))
    with pytest.raises(UserError, match='which is not plain data'):
        collect_results(tmp_path)
    assert not (tmp_path / 'trace').exists()


def _chromium(*args: str | Path) -> str:
    names = ('chromium', 'chromium-browser', 'google-chrome')
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f'no browser: none of {", ".join(names)} is installed')
    flags = '--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking '
    flags += '--disable-component-update --disable-sync --hide-scrollbars'
    command = [browser, *flags.split(), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
def test_browser_decodes_every_image(report: Path, tmp_path: Path) -> None:
    page = Page(_chromium(f'--user-data-dir={tmp_path}', '--dump-dom', report.as_uri()))
    # A script of the page counts the images that the browser cannot decode.
    assert page.attributes('html')[0]['data-broken-images'] == '0'
    assert len(page.attributes('img')) == NUM_IMAGES
    assert len(page.attributes('svg')) == NUM_CHARTS
    for expected in ('91.2', '70.6', '29.5', '61.4', '41.1 points above'):
        assert expected in page.text


@pytest.mark.slow
def test_browser_counts_a_damaged_image(report: Path, tmp_path: Path) -> None:
    damaged = tmp_path / 'damaged.html'
    damaged.write_text(
        report.read_text().replace('data:image/jpeg;base64,/9j/', 'data:image/jpeg;base64,AAAA', 1)
    )
    page = Page(_chromium(f'--user-data-dir={tmp_path}', '--dump-dom', damaged.as_uri()))
    assert page.attributes('html')[0]['data-broken-images'] == '1'


@pytest.mark.slow
def test_browser_renders_curves_and_predictions(report: Path, tmp_path: Path) -> None:
    shot = tmp_path / 'shot.png'
    flags = (f'--user-data-dir={tmp_path}', '--window-size=1200,6000', f'--screenshot={shot}')
    _chromium(*flags, report.as_uri())
    picture = cv2.imread(str(shot)).astype(int)
    assert picture.shape[1] == 1200

    def pixels_of(rgb: tuple[int, int, int], rows: slice = slice(None)) -> int:
        return int((abs(picture[rows] - np.array(rgb[::-1])).max(axis=2) <= 3).sum())

    # Both curves of the comparison are at the top, red frames further down.
    assert pixels_of((0x2F, 0x7D, 0xE1), slice(0, 1000)) > 1000
    assert pixels_of((0xE2, 0x71, 0x1D), slice(0, 1000)) > 1000
    assert pixels_of((0xD0, 0x2B, 0x2B)) > 4 * 3 * 100
