"""Which config makes which row, and what is expected of it."""

import csv
from pathlib import Path

import pytest

from inline.errors import UserError
from inline.reproduce.measured import append_measured, columns, find_measured, read_measured
from inline.reproduce.tables import BOX_AP, MASK_AP, TABLES, Table, _expected_name, find_table, row_name


@pytest.mark.parametrize(
    ('stem', 'name'),
    [
        ('inline-pvt-small_8xb128_in1k', 'inline-pvt-small'),
        ('inline-deit-small_8xb128_in1k-288px', 'inline-deit-small'),
        ('inline-swin-base_8xb64_in1k-384px', 'inline-swin-base-384'),
        ('mask-rcnn_inline-pvt-small_fpn_1x_coco', 'inline-pvt-small_mask-rcnn_1x'),
        ('mask-rcnn_inline-deit-tiny_1x_coco', 'inline-deit-tiny_mask-rcnn_1x'),
        ('cascade-mask-rcnn_swin-base_fpn_ms-crop-3x_coco', 'swin-base_cascade-mask-rcnn_3x'),
        ('semantic-fpn_pvt-tiny_8xb4-40k_ade20k-512x512', 'pvt-tiny_semantic-fpn_40k'),
        ('upernet_inline-swin-base_8xb2-160k_ade20k-512x512', 'inline-swin-base_upernet_160k'),
        ('inline-pvt-nano_digits', 'inline-pvt-nano'),
        ('retinanet_inline-pvt-nano_digits', 'inline-pvt-nano_retinanet'),
    ],
)
def test_a_row_is_named_after_its_config(stem: str, name: str) -> None:
    assert row_name(stem) == name


@pytest.mark.parametrize('table', TABLES.values(), ids=lambda table: table.name)
def test_every_expected_figure_has_a_config(table: Table) -> None:
    with table.expected.open(newline='') as file:
        named = [_expected_name(line) for line in csv.DictReader(file)]
    assert named
    assert len(set(named)) == len(named)
    assert set(named) <= set(table.rows)


def test_expected_figures_are_the_papers() -> None:
    assert TABLES['imagenet'].row('inline-swin-tiny').expected == {'top1': 82.4}
    assert TABLES['imagenet'].row('inline-swin-base-384').expected == {}
    assert TABLES['coco'].row('inline-pvt-small_mask-rcnn_1x').expected == {'box_ap': 43.4}
    assert TABLES['coco'].row('pvt-tiny_mask-rcnn_1x').expected == {'box_ap': 36.7, 'mask_ap': 35.1}
    assert TABLES['ade20k'].row('inline-swin-tiny_upernet_160k').expected == {'miou': 45.57, 'macc': 57.6}


def test_weights_of_a_row() -> None:
    imagenet, coco = TABLES['imagenet'], TABLES['coco']
    assert imagenet.row('inline-swin-base').released == 'inline-swin-base'
    assert imagenet.row('inline-swin-base-384').released is None
    assert imagenet.row('inline-swin-base-384').starts_from == 'checkpoints/inline-swin-base.pth'
    assert imagenet.row('swin-base').released is None
    detector = coco.row('inline-pvt-small_mask-rcnn_1x')
    assert (detector.released, detector.starts_from) == (None, 'checkpoints/inline-pvt-small.pth')
    assert detector.metrics == (BOX_AP, MASK_AP)
    assert coco.row('inline-pvt-small_retinanet_1x').metrics == (BOX_AP,)


def test_unknown_names_are_told_with_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="unknown table 'cifar': choose one of imagenet, coco, ade20k, digits"
    ):
        find_table('cifar')
    with pytest.raises(UserError, match="no row 'pvt': choose one of inline-pvt-nano, pvt-nano"):
        find_table('digits').row('pvt')


def provenance(digest: str) -> dict[str, str]:
    return {column: digest if column == 'digest' else column for column in columns(TABLES['coco'])[3:]}


def test_runs_are_added_and_found_by_what_they_depend_on(tmp_path: Path) -> None:
    row, other = (TABLES['coco'].row(f'{size}_mask-rcnn_1x') for size in ('pvt-tiny', 'pvt-small'))
    assert find_measured(row, tmp_path) is None
    append_measured(row, tmp_path, {'box_ap': 36.66, 'mask_ap': 35.0}, provenance('a'))
    append_measured(row, tmp_path, {'box_ap': 36.9}, provenance('b'))
    assert [line['box_ap'] for line in read_measured(row.table, tmp_path)] == ['36.66', '36.90']
    assert find_measured(row, tmp_path)['box_ap'] == '36.90'
    assert find_measured(row, tmp_path, 'a')['mask_ap'] == '35.00'
    assert find_measured(row, tmp_path, 'c') is None
    assert find_measured(other, tmp_path) is None
    (tmp_path / 'coco.csv').write_text('row,ap\nx,1\n')
    with pytest.raises(UserError, match='has other columns than expected: row, box_ap'):
        append_measured(row, tmp_path, {'box_ap': 1.0}, provenance('d'))
    assert (tmp_path / 'coco.csv').read_text() == 'row,ap\nx,1\n'
