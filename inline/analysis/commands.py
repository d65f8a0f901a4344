"""The commands of ``tools/analyze.py``: each measures, writes a CSV file and a figure, and prints a table."""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from inline.analysis import figures
from inline.analysis.illustration import make_figure1
from inline.analysis.injectivity import TOLERANCE, layer_collisions, max_distance
from inline.analysis.layers import Layer, capture_inputs
from inline.analysis.locality import Locality, layer_locality
from inline.analysis.maps import LayerMaps, Pixel, check_query, layer_maps
from inline.analysis.masking import Mask, check_maskable, masked_attention
from inline.analysis.models import (
    AnalysisModel,
    Batch,
    load_analysis_model,
    read_image,
    sample_images,
)
from inline.models.mixers.base import AttentionInputs
from inline.utils.arguments import check_positive
from inline.utils.atomic import make_folder
from inline.utils.errors import UserError
from inline.utils.tables import Cell, format_table, write_csv

PERCENT = 100
T = TypeVar('T')
Loader = DataLoader[Any]
Shares = tuple[float | None, ...]


def load_models(args: argparse.Namespace) -> list[tuple[AnalysisModel, Loader]]:
    """Load the models of the command line, given as pairs of config and checkpoint, and their images."""
    check_positive('--images', args.images)
    check_positive('--batch-size', args.batch_size)
    if len(args.models) % 2:
        raise UserError(f'{len(args.models)} files: pass a config and a checkpoint for each model')
    pairs = list(zip(args.models[::2], args.models[1::2], strict=True))
    labels = args.label or [Path(config).stem for config, _ in pairs]
    if len(labels) != len(pairs):
        raise UserError(f'--label has {len(labels)} names, but there are {len(pairs)} models')
    label, count = Counter(labels).most_common(1)[0]
    if count > 1:
        raise UserError(f'{count} models have the label {label!r}: give each a different one with --label')
    models = [
        load_analysis_model(
            config,
            checkpoint,
            label=label,
            options=args.cfg_options,
            data_root=args.data_root,
            layers=args.layers,
        )
        for label, (config, checkpoint) in zip(labels, pairs, strict=True)
    ]
    return [(model, sample_images(model, args.images, args.seed, args.batch_size)) for model in models]


def run_illustration(args: argparse.Namespace) -> None:
    panels = make_figure1()
    folder = make_folder('--out', args.out)
    write_csv(
        folder / 'illustration.csv',
        ('panel', 'kernel', 'attention', 'query', 'k1', 'k2', 'k3', 'k4'),
        [
            (panel.name, panel.kernel, name, f'q{query + 1}', *row)
            for panel in panels
            for name, weights in panel.weights.items()
            for query, row in enumerate(weights.tolist())
        ],
    )
    figures.draw_illustration(panels, folder / 'illustration.png')
    rows = [
        (panel.name, panel.kernel, name, max_distance(weights))
        for panel in panels
        for name, weights in panel.weights.items()
    ]
    columns = ('panel', 'kernel', 'attention', 'largest L2 distance between two queries')
    _print_report(columns, rows, folder, 'illustration.csv', 'illustration.png')


def run_injectivity(args: argparse.Namespace) -> None:
    if not args.tolerance > 0:
        raise UserError(f'--tolerance {args.tolerance}: must be greater than 0')
    models = load_models(args)
    folder = make_folder('--out', args.out)
    measured = {model.label: measure_injectivity(model, loader, args.tolerance) for model, loader in models}
    rows: list[list[Cell]] = [
        [label, image, layer, head + 1, int(found[image, head]), int(pairs[image, head])]
        for label, collisions in measured.items()
        for layer, (found, pairs) in collisions.items()
        for image in range(found.shape[0])
        for head in range(found.shape[1])
    ]
    header = ('model', 'image', 'layer', 'head', 'colliding pairs', 'pairs')
    write_csv(folder / 'injectivity.csv', header, rows)
    figures.draw_injectivity(measured, args.tolerance, folder / 'injectivity.png')
    figures.draw_heads(measured, folder / 'injectivity_heads.png')
    table = [
        (
            label,
            layer,
            found.double().sum(1).mean().item(),
            pairs.double().sum(1).mean().item(),
            float(found.sum() / pairs.sum().clamp(min=1) * PERCENT),
        )
        for label, collisions in measured.items()
        for layer, (found, pairs) in collisions.items()
    ]
    columns = ('model', 'layer', 'colliding pairs/image', 'pairs/image', 'share (%)')
    _print_report(columns, table, folder, 'injectivity.csv', 'injectivity.png', 'injectivity_heads.png')


def measure_injectivity(
    model: AnalysisModel, loader: Loader, tolerance: float = TOLERANCE
) -> dict[str, tuple[Tensor, ...]]:
    """Return colliding pairs and all pairs per image and head, each (images, heads), by layer key."""
    # Normalisation by division can produce weights so large that equal rows differ in float32.
    model.model.backbone.double()
    measured = _measure_layers(
        model,
        loader,
        lambda layer, inputs_list: torch.stack(layer_collisions(layer.mixer, inputs_list, tolerance)).cpu(),
    )
    return {key: torch.cat(batches, dim=1).unbind() for key, batches in measured.items()}


def run_locality(args: argparse.Namespace) -> None:
    models = load_models(args)
    folder = make_folder('--out', args.out)
    measured = {model.label: measure_locality(model, loader) for model, loader in models}
    rows: list[list[Cell]] = [
        [label, layer, *(None if share is None else share * PERCENT for share in shares)]
        for label, layers in measured.items()
        for layer, shares in layers.items()
    ]
    header = ('model', 'layer', 'attention (%)', 'with local terms (%)', 'chance (%)')
    write_csv(folder / 'locality.csv', header, rows)
    figures.draw_locality(measured, folder / 'locality.png')
    _print_report(header, rows, folder, 'locality.csv', 'locality.png')


def measure_locality(model: AnalysisModel, loader: Loader) -> dict[str, Shares]:
    """Return the mean shares of attention, of attention with local terms and of chance, by layer key.

    Shares are None where they are not defined: all three in layers with spatial reduction.
    """
    measured = _measure_layers(
        model, loader, lambda layer, inputs_list: layer_locality(layer.mixer, inputs_list)
    )
    shares = {key: _mean_shares(batches) for key, batches in measured.items()}
    skipped = [key for key, (attention, *_) in shares.items() if attention is None]
    if len(skipped) == len(measured):
        raise UserError(f'{model.label}: all layers have spatial reduction, so locality is not defined')
    if skipped:
        print(f'{model.label}: skipped layers {", ".join(skipped)}, which have spatial reduction')
    return shares


def _mean_shares(batches: Sequence[Locality | None]) -> Shares:
    results = [batch for batch in batches if batch is not None]
    shares = [
        None if values[0] is None else float(torch.cat(values).mean())
        for values in zip(*results, strict=True)
    ]
    return tuple(shares or [None] * 3)


def run_masking(args: argparse.Namespace) -> None:
    for side in args.windows:
        if side < 1 or side % 2 == 0:
            raise UserError(f'--windows {side}: must be odd and positive, such as 3')
    models = load_models(args)
    folder = make_folder('--out', args.out)
    for model, _ in models:
        if model.cfg.default_scope != 'mmpretrain':
            raise UserError(
                f'{model.label} is a model of {model.cfg.default_scope}: masking measures the accuracy of '
                'classifiers'
            )
        check_maskable(model.layers)
    masks = [None, *(Mask(side, random, args.seed) for side in args.windows for random in (False, True))]
    rows: list[list[Cell]] = []
    for model, loader in models:
        correct, images = measure_masking(model, loader, masks)
        rows += [
            [model.label, *_describe_mask(mask), images, count / images * PERCENT]
            for mask, count in zip(masks, correct, strict=True)
        ]
    header = ('model', 'masked keys', 'window', 'images', 'top-1 (%)')
    write_csv(folder / 'masking.csv', header, rows)
    figures.draw_masking(rows, folder / 'masking.png')
    _print_report(header, rows, folder, 'masking.csv', 'masking.png')


def measure_masking(
    model: AnalysisModel, loader: Loader, masks: Sequence[Mask | None]
) -> tuple[list[int], int]:
    """Return the number of correctly classified images under each mask, and the number of images."""
    correct, images = [0] * len(masks), 0
    for batch in _iterate(model, loader):
        for i, mask in enumerate(masks):
            if mask is None:
                samples = model.predict(batch)
            else:
                with masked_attention(model.layers, mask, first_image=images):
                    samples = model.predict(batch)
            correct[i] += sum(bool((sample.pred_label == sample.gt_label).all()) for sample in samples)
        images += len(batch['inputs'])
    return correct, images


def run_maps(args: argparse.Namespace) -> None:
    model = load_analysis_model(args.config, args.checkpoint, options=args.cfg_options, layers=args.layers)
    batch, image = read_image(model, args.image)
    size = (image.shape[0], image.shape[1])
    queries = [(y, x) for y, x in args.query or [(size[0] // 2, size[1] // 2)]]
    for query in queries:
        check_query(query, size)
    maps: list[LayerMaps] = []
    with torch.no_grad():
        # The data preprocessor may pad the image, and the maps cover the padded image.
        height, width = model.prepare(batch)['inputs'].shape[-2:]
        with capture_inputs(
            model.layers,
            lambda layer, inputs_list: maps.append(layer_maps(layer, inputs_list, queries, (height, width))),
        ):
            model.run_backbone(batch)
    folder = make_folder('--out', args.out)
    name = f'maps_{Path(args.image).stem}'
    header = ('layer', 'query y', 'query x', 'kind', 'row', 'column', 'weight')
    write_csv(folder / f'{name}.csv', header, _map_rows(maps, queries))
    figures.draw_maps(image, queries, maps, folder / f'{name}.png')
    rows = [
        (layer_map.layer.name, y, x, float(np.nanmin(weights)), float(np.nanmax(weights)))
        for layer_map in maps
        for (y, x), weights in zip(queries, layer_map.weights.numpy(), strict=True)
    ]
    columns = ('layer', 'query y', 'query x', 'smallest weight', 'largest weight')
    _print_report(columns, rows, folder, f'{name}.csv', f'{name}.png')


def _map_rows(maps: Sequence[LayerMaps], queries: Sequence[Pixel]) -> Iterator[list[Cell]]:
    for layer_map in maps:
        for kind, grids in (('attention', layer_map.weights), ('residual', layer_map.residual)):
            if grids is not None:
                for query, row, column in (~grids.isnan()).nonzero().tolist():
                    weight = float(grids[query, row, column])
                    yield [layer_map.layer.key, *queries[query], kind, row, column, weight]


def _measure_layers(
    model: AnalysisModel, loader: Loader, measure: Callable[[Layer, list[AttentionInputs]], T]
) -> dict[str, list[T]]:
    """Return the results of `measure` for each batch, by layer key."""
    results: dict[str, list[T]] = defaultdict(list)

    def callback(layer: Layer, inputs_list: list[AttentionInputs]) -> None:
        results[layer.key].append(measure(layer, inputs_list))

    with capture_inputs(model.layers, callback):
        for batch in _iterate(model, loader):
            model.run_backbone(batch)
    return results


def _iterate(model: AnalysisModel, loader: Loader) -> Iterator[Batch]:
    """Yield the batches without gradients, with a progress bar."""
    model.model.eval()
    with torch.no_grad(), tqdm(total=len(loader.dataset), desc=model.label, unit='image') as bar:  # type: ignore[arg-type]
        for batch in loader:
            yield batch
            bar.update(len(batch['inputs']))


def _describe_mask(mask: Mask | None) -> tuple[str, str]:
    if mask is None:
        return 'none', '–'
    return 'random' if mask.random else 'local', f'{mask.side}×{mask.side}'


def _print_report(header: Sequence[str], rows: Sequence[Sequence[Cell]], folder: Path, *names: str) -> None:
    print(format_table(header, rows))
    print(*(folder / name for name in names), sep='\n')
