"""What ``tools/analyze.py`` runs: measure, write CSV and a figure, print a small table."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from inline.analysis import figures
from inline.analysis.illustration import LENGTHS, illustrate, largest_difference
from inline.analysis.injectivity import TOLERANCE, layer_collisions
from inline.analysis.layers import Layer, watch
from inline.analysis.locality import Locality, layer_locality
from inline.analysis.maps import LayerMaps, Pixel, check_query, layer_maps
from inline.analysis.masking import Mask, check_maskable, masked
from inline.analysis.subjects import Batch, Subject, count_batch, read_image, read_subject, sample_images
from inline.analysis.tables import Cell, format_table, write_csv
from inline.errors import UserError
from inline.models.mixers.base import Part
from inline.whole_files import make_folder

PERCENT = 100


def read_models(args: argparse.Namespace) -> list[tuple[Subject, DataLoader[Any]]]:
    """The models named on the command line, each by a config and a checkpoint, and images for each."""
    for flag, value in (('--images', args.images), ('--batch-size', args.batch_size)):
        if value is not None and value < 1:
            raise UserError(f'{flag} {value}: must be at least 1')
    if len(args.models) % 2:
        raise UserError(f'{len(args.models)} files: give a config and a checkpoint for each model')
    pairs = list(zip(args.models[::2], args.models[1::2], strict=True))
    labels = args.label or [Path(config).stem for config, _ in pairs]
    if len(labels) != len(pairs):
        raise UserError(f'--label has {len(labels)} names: there are {len(pairs)} models')
    if len(set(labels)) < len(labels):
        raise UserError(f'two models are called {_repeated(labels)!r}: tell them apart with --label')
    subjects = [
        read_subject(
            config,
            checkpoint,
            label=label,
            options=args.cfg_options,
            data_root=args.data_root,
            layers=args.layers,
        )
        for label, (config, checkpoint) in zip(labels, pairs, strict=True)
    ]
    return [
        (subject, sample_images(subject, args.images, args.seed, args.batch_size)) for subject in subjects
    ]


def run_illustration(args: argparse.Namespace) -> None:
    shown = illustrate()
    folder = make_folder('--out', args.out)
    write_csv(
        folder / 'illustration.csv',
        ('attention', 'query length', 'key', 'weight'),
        [
            (kind, length, key + 1, float(weights[query, key]))
            for kind, weights in shown.weights.items()
            for query, length in enumerate(LENGTHS)
            for key in range(len(shown.keys))
        ],
    )
    figures.draw_illustration(shown, folder / 'illustration.png')
    rows = [(kind, largest_difference(weights)) for kind, weights in shown.weights.items()]
    print(format_table(('attention', 'largest L2 difference between two queries'), rows))
    _tell(folder, 'illustration')


def run_injectivity(args: argparse.Namespace) -> None:
    if not args.tolerance > 0:
        raise UserError(f'--tolerance {args.tolerance}: must be greater than 0')
    models = read_models(args)
    folder = make_folder('--out', args.out)
    measured = {}
    rows: list[list[Cell]] = []
    for subject, loader in models:
        # Weights of attention that divides can be so large that float32 would tell equal rows apart.
        subject.model.backbone.double()
        collisions = measure_injectivity(subject, loader, args.tolerance)
        measured[subject.label] = collisions
        rows += [
            [subject.label, image, layer, head + 1, int(found[image, head]), int(pairs[image, head])]
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
            _share(found, pairs),
        )
        for label, collisions in measured.items()
        for layer, (found, pairs) in collisions.items()
    ]
    print(format_table(('model', 'layer', 'colliding pairs/image', 'pairs/image', 'share (%)'), table))
    _tell(folder, 'injectivity')
    print(folder / 'injectivity_heads.png')


def measure_injectivity(
    subject: Subject, loader: DataLoader[Any], tolerance: float = TOLERANCE
) -> dict[str, tuple[Tensor, Tensor]]:
    """By layer, colliding pairs and all pairs of every image and head, (images, heads) each."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {layer.key: [] for layer in subject.layers}

    def see(layer: Layer, parts: list[Part]) -> None:
        collisions, pairs = layer_collisions(layer.mixer, parts, tolerance)
        found[layer.key].append((collisions.cpu(), pairs.cpu()))

    for batch in _batches(subject, loader, subject.label):
        with watch(subject.layers, see):
            subject.run_backbone(batch)
    return {
        key: (torch.cat([one for one, _ in each]), torch.cat([all_ for _, all_ in each]))
        for key, each in found.items()
    }


def run_locality(args: argparse.Namespace) -> None:
    models = read_models(args)
    folder = make_folder('--out', args.out)
    measured = {subject.label: measure_locality(subject, loader) for subject, loader in models}
    rows: list[list[Cell]] = [
        [label, layer, *(None if share is None else share * PERCENT for share in shares)]
        for label, layers in measured.items()
        for layer, shares in layers.items()
    ]
    header = ('model', 'layer', 'attention (%)', 'with local terms (%)', 'chance (%)')
    write_csv(folder / 'locality.csv', header, rows)
    figures.draw_locality(measured, folder / 'locality.png')
    print(format_table(header, rows))
    _tell(folder, 'locality')


Shares = tuple[float | None, float | None, float | None]


def measure_locality(subject: Subject, loader: DataLoader[Any]) -> dict[str, Shares]:
    """By layer, the share of attention, of attention with local terms and of chance, means over images.

    None is a share that does not exist: all three where keys are not places of the map.
    """
    found: dict[str, list[Locality]] = {layer.key: [] for layer in subject.layers}

    def see(layer: Layer, parts: list[Part]) -> None:
        locality = layer_locality(layer.mixer, parts)
        if locality is not None:
            found[layer.key].append(locality)

    for batch in _batches(subject, loader, subject.label):
        with watch(subject.layers, see):
            subject.run_backbone(batch)
    without = [key for key, each in found.items() if not each]
    if len(without) == len(found):
        raise UserError(f'{subject.label}: all layers have spatial reduction, so that no key is near a query')
    if without:
        print(f'{subject.label}: layers {", ".join(without)} have spatial reduction, no key is near a query')
    return {key: _mean_shares(each) for key, each in found.items()}


def run_masking(args: argparse.Namespace) -> None:
    for side in args.windows:
        if side < 1 or side % 2 == 0:
            raise UserError(f'--windows {side}: a window around a query has an odd side, such as 3')
    models = read_models(args)
    folder = make_folder('--out', args.out)
    for subject, _ in models:
        if subject.cfg.default_scope != 'mmpretrain':
            raise UserError(
                f'{subject.label} is a model of {subject.cfg.default_scope}: '
                'masking measures the accuracy of classifiers'
            )
        check_maskable(subject.layers)
    masks = [None, *(Mask(side, random, args.seed) for side in args.windows for random in (False, True))]
    rows: list[list[Cell]] = []
    for subject, loader in models:
        correct, images = measure_masking(subject, loader, masks)
        rows += [
            [subject.label, *_name_mask(mask), images, count / images * PERCENT]
            for mask, count in zip(masks, correct, strict=True)
        ]
    header = ('model', 'masked keys', 'window', 'images', 'top-1 (%)')
    write_csv(folder / 'masking.csv', header, rows)
    figures.draw_masking(rows, folder / 'masking.png')
    print(format_table(header, rows))
    _tell(folder, 'masking')


def measure_masking(
    subject: Subject, loader: DataLoader[Any], masks: Sequence[Mask | None]
) -> tuple[list[int], int]:
    """Images classified rightly under each mask, and how many images there are."""
    correct, images = [0] * len(masks), 0
    for batch in _batches(subject, loader, subject.label):
        for i, mask in enumerate(masks):
            if mask is None:
                samples = subject.predict(batch)
            else:
                with masked(subject.layers, mask, first_image=images):
                    samples = subject.predict(batch)
            correct[i] += sum(bool((one.pred_label == one.gt_label).all()) for one in samples)
        images += count_batch(batch)
    return correct, images


def run_maps(args: argparse.Namespace) -> None:
    subject = read_subject(args.config, args.checkpoint, options=args.cfg_options, layers=args.layers)
    batch, shown = read_image(subject, args.image)
    size = (shown.shape[0], shown.shape[1])
    queries = [(y, x) for y, x in args.query or [(size[0] // 2, size[1] // 2)]]
    for query in queries:
        check_query(query, size)
    maps: list[LayerMaps] = []
    with torch.no_grad():
        # The preprocessor may pad the image: the map is of the padded one.
        padded = subject.prepare(batch)['inputs'].shape[-2:]

        def see(layer: Layer, parts: list[Part]) -> None:
            maps.append(layer_maps(layer, parts, queries, (padded[0], padded[1])))

        with watch(subject.layers, see):
            subject.run_backbone(batch)
    folder = make_folder('--out', args.out)
    name = f'maps_{Path(args.image).stem}'
    header = ('layer', 'query y', 'query x', 'kind', 'row', 'column', 'weight')
    write_csv(folder / f'{name}.csv', header, list(_map_rows(maps, queries)))
    figures.draw_maps(shown, queries, maps, folder / f'{name}.png')
    rows = [
        (one.layer.name, y, x, float(weights[~weights.isnan()].min()), float(weights[~weights.isnan()].max()))
        for one in maps
        for (y, x), weights in zip(queries, one.weights, strict=True)
    ]
    print(format_table(('layer', 'query y', 'query x', 'smallest weight', 'largest weight'), rows))
    _tell(folder, name)


def _map_rows(maps: Sequence[LayerMaps], queries: Sequence[Pixel]) -> Iterator[list[Cell]]:
    for one in maps:
        for kind, grids in (('attention', one.weights), ('residual', one.residual)):
            for (y, x), grid in zip(queries, () if grids is None else grids, strict=grids is not None):
                for row, values in enumerate(grid.tolist()):
                    for column, value in enumerate(values):
                        if value == value:
                            yield [one.layer.key, y, x, kind, row, column, value]


def _batches(subject: Subject, loader: DataLoader[Any], name: str) -> Iterator[Batch]:
    """The batches, under a bar that says how long it will take."""
    subject.model.eval()
    with torch.no_grad(), tqdm(total=len(loader.dataset), desc=name, unit='image') as bar:  # type: ignore[arg-type]
        for batch in loader:
            yield batch
            bar.update(count_batch(batch))


def _mean_shares(each: Sequence[Locality]) -> Shares:
    def mean(shares: Sequence[Tensor]) -> float | None:
        return float(torch.cat(list(shares)).mean()) if shares else None

    terms = [one.with_local_terms for one in each if one.with_local_terms is not None]
    return mean([one.attention for one in each]), mean(terms), mean([one.chance for one in each])


def _share(found: Tensor, pairs: Tensor) -> float:
    return float(found.sum() / pairs.sum().clamp(min=1) * PERCENT)


def _name_mask(mask: Mask | None) -> tuple[str, str]:
    if mask is None:
        return 'none', '–'
    return 'random' if mask.random else 'local', f'{mask.side}×{mask.side}'


def _repeated(labels: Sequence[str]) -> str:
    return next(label for label in labels if list(labels).count(label) > 1)


def _tell(folder: Path, name: str) -> None:
    print(f'{folder / name}.csv\n{folder / name}.png')
