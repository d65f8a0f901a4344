"""Distributed testing gives the metrics of one process, also if the images do not divide evenly."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmengine.dataset import DefaultSampler
from mmengine.dist import dist as mmengine_dist
from mmengine.evaluator import BaseMetric, Evaluator
from mmpretrain.evaluation import Accuracy
from mmseg.evaluation import IoUMetric

from inline.engine.distributed.setup import gather_results, start_gloo
from inline.openmmlab.patches import collect_results_in_memory
from tests.engine.distributed.ranks import launcher, run_ranks

# Fewer images than ranks, and numbers that 2, 3 and 4 do not divide.
SIZES = (1, 7, 10)
CLASSES = ('a', 'b', 'c')


class ImageIds(BaseMetric):
    """Ids of the evaluated images, in order."""

    default_prefix = 'seen'

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:  # noqa: ARG002 (MMEngine's)
        self.results += [sample['img_id'] for sample in data_samples]

    def compute_metrics(self, results: list[int]) -> dict[str, list[int]]:
        return {'images': results}


def sample(index: int) -> dict[str, Any]:
    """Return ground truth and a partly correct prediction for all metrics, determined by the index."""
    random = np.random.default_rng(index)
    truth = torch.from_numpy(random.integers(0, 3, (4, 6)))
    wrong = torch.from_numpy(random.random((4, 6)) < 0.4)
    boxes = torch.tensor(box(index)) + torch.from_numpy(random.normal(0, 2, 4))
    boxes[2:] += boxes[:2]
    return {
        'img_id': index,
        'ori_shape': (40, 40),
        'gt_label': torch.tensor([index % 3]),
        'pred_score': torch.from_numpy(random.random(3)),
        'gt_sem_seg': {'data': truth[None]},
        'pred_sem_seg': {'data': torch.where(wrong, (truth + 1) % 3, truth)[None]},
        'pred_instances': {
            'bboxes': boxes[None],
            'scores': torch.from_numpy(random.random(1)),
            'labels': torch.tensor([index % 3 if index % 5 else 1]),
        },
    }


def box(index: int) -> list[float]:
    """Return left, top, width and height."""
    return [2.0 + index, 3.0, 12.0 + index, 15.0]


def write_coco(path: Path, size: int) -> None:
    images = [{'id': i, 'file_name': f'{i}.jpg', 'width': 40, 'height': 40} for i in range(size)]
    objects = [
        {'id': i + 1, 'image_id': i, 'category_id': i % 3, 'bbox': box(i), 'area': 100.0, 'iscrowd': 0}
        for i in range(size)
    ]
    categories = [{'id': i, 'name': name} for i, name in enumerate(CLASSES)]
    path.write_text(json.dumps({'images': images, 'annotations': objects, 'categories': categories}))


def metrics_of(folder: Path, size: int, round_up: bool) -> dict[str, Any]:
    """Return all metrics over `size` images; this rank processes those that MMEngine's sampler gives it."""
    metrics = [ImageIds(), Accuracy(), IoUMetric(), CocoMetric(ann_file=str(folder / f'{size}.json'))]
    evaluator = Evaluator(metrics)
    evaluator.dataset_meta = {'classes': CLASSES}
    indices: Iterator[int] = iter(DefaultSampler(range(size), shuffle=False, round_up=round_up))
    for index in indices:
        evaluator.process([sample(index)])
    return dict(evaluator.evaluate(size))


@pytest.mark.parametrize('world_size', [2, 3, 4])
def test_every_image_counts_exactly_once(world_size: int, tmp_path: Path) -> None:
    for size in SIZES:
        write_coco(tmp_path / f'{size}.json', size)
    empty = tmp_path / 'current_directory'
    empty.mkdir()

    def work() -> list[dict[str, Any]]:
        os.chdir(empty)
        start_gloo(launcher())
        collect_results_in_memory(gather_results)
        return [metrics_of(tmp_path, size, round_up) for size in SIZES for round_up in (True, False)]

    expected = [metrics_of(tmp_path, size, True) for size in SIZES for _ in range(2)]
    assert [found['seen/images'] for found in expected[::2]] == [list(range(size)) for size in SIZES]
    # Metrics are between the extremes, so that a missing or repeated image changes them.
    assert 0 < expected[-1]['accuracy/top1'] < 100
    assert 0 < expected[-1]['coco/bbox_mAP'] < 1
    assert 0 < expected[-1]['mIoU'] < 100
    for found in run_ranks(world_size, work, tmp_path / 'ranks'):
        np.testing.assert_equal(found, expected)
    assert not list(empty.iterdir()), 'results were exchanged through files'


def test_results_are_exchanged_through_files_if_a_metric_names_a_folder(tmp_path: Path) -> None:
    def work() -> list[int] | None:
        start_gloo(launcher())
        collect_results_in_memory(gather_results)
        return mmengine_dist.collect_results_cpu([torch.distributed.get_rank()], 2, str(tmp_path / 'shared'))

    assert run_ranks(2, work, tmp_path / 'ranks') == [[0, 1], None]


def test_single_process_returns_its_results() -> None:
    assert gather_results([3, 1, 2], 2) == [3, 1]
