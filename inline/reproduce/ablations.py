"""Ablations: rows that differ only in the attention, as configs, and the runs that train them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inline.reproduce.provenance import ROOT
from inline.reproduce.runs import Run
from inline.utils.arguments import check_choice
from inline.utils.errors import UserError

# Folders of the configs by dataset.
DATASETS = {'digits': 'digits', 'tiny-imagenet': 'tiny_imagenet', 'imagenet': 'in1k'}
# Earlier names, still accepted on the command line.
ALIASES = {'parts': 'components', 'rivals': 'baselines'}


@dataclass(frozen=True)
class Ablation:
    """An ablation table.

    Args:
        name: Name on the command line, and of the folder below configs/ablations/.
        title: Title of the table.
        rows: Row titles by config name, for each dataset.
        seeds: Default number of seeds by dataset; 1 for others.
    """

    name: str
    title: str
    rows: Mapping[str, Mapping[str, str]]
    seeds: Mapping[str, int] = field(default_factory=dict)

    def config(self, dataset: str, row: str) -> Path:
        return ROOT / 'configs' / 'ablations' / self.name / DATASETS[dataset] / f'{row}.py'

    def choose_rows(self, dataset: str, names: Sequence[str] | None = None) -> dict[str, str]:
        """Return the titles of the named rows, by default of all, in the order of the table."""
        if dataset not in self.rows:
            known = ', '.join(self.rows)
            raise UserError(f'table {self.name!r} has no configs for {dataset!r}: choose from {known}')
        titles = dict(self.rows[dataset])
        for name in names or ():
            if name not in titles:
                raise UserError(f'table {self.name!r} has no row {name!r}: choose from {", ".join(titles)}')
        return {row: title for row, title in titles.items() if not names or row in names}


_COMPONENTS = {
    'softmax': 'softmax',
    'linear': 'linear',
    'linear_injective': 'linear + injectivity',
    'linear_residual': 'linear + residual',
    'inline': 'InLine',
}
_BASELINES = {
    'softmax': 'softmax',
    'linear': 'linear',
    'cosformer': 'cosFormer',
    'nystrom': 'Nyströmformer',
    'efficient': 'Efficient Attention',
    'transnormer': 'TransNormer',
    'flatten': 'FLatten',
    'mlla': 'MLLA',
    'mlla_gated': 'MLLA, gated mixer',
    'agent': 'Agent Attention',
    'polaformer': 'PolaFormer',
    'rala': 'RALA',
    'mala': 'MALA',
    'mhla': 'MHLA',
    'circulant': 'Circulant Attention',
    'inline': 'InLine',
}
_KERNELS = {
    f'{kernel}{suffix}': f'{title}, {normalization}'
    for kernel, title in (
        ('identity', 'identity'),
        ('relu', 'relu'),
        ('leaky-relu', 'leaky relu'),
        ('affine-relu', 'relu(Ax + b)'),
        ('exp', 'exp'),
    )
    for suffix, normalization in (('', 'divided'), ('_injective', 'injective'))
}
# Window sizes on the first feature map, which is 16×16 tokens on digits and 56×56 at 224 pixels.
_WINDOWS = {
    dataset: {
        f'window-{size}{suffix}': f'window {size}, {residual}'
        for size in sizes
        for suffix, residual in (('', 'no residual'), ('_residual', 'residual'))
    }
    for dataset, sizes in (('digits', (2, 4, 8, 16)), ('imagenet', (7, 14, 28, 56)))
}
ABLATIONS = {
    'components': Ablation(
        'components',
        'components of InLine attention',
        dict.fromkeys(DATASETS, _COMPONENTS),
        seeds={'tiny-imagenet': 2},
    ),
    'baselines': Ablation(
        'baselines', 'attention mechanisms', dict.fromkeys(DATASETS, _BASELINES), seeds={'digits': 3}
    ),
    'kernels': Ablation(
        'kernels',
        'kernels in a Swin, normalised by division or injective, without residual',
        dict.fromkeys(('digits', 'imagenet'), _KERNELS),
    ),
    'windows': Ablation('windows', 'window sizes in a Swin, with and without residual', _WINDOWS),
}


def find_ablation(name: str) -> Ablation:
    name = ALIASES.get(name, name)
    check_choice('unknown table', name, ABLATIONS)
    return ABLATIONS[name]


def plan_runs(
    ablation: Ablation,
    dataset: str,
    seeds: int,
    folder: Path,
    *,
    data_root: str | None = None,
    processes: int = 1,
    options: Sequence[str] = (),
    rows: Collection[str] | None = None,
) -> dict[tuple[str, int], Run]:
    """Return the runs of a table, or of some of its rows, by row and seed."""
    return {
        (row, seed): Run(
            ablation.config(dataset, row),
            folder / f'{row}_seed{seed}',
            data_root=data_root,
            processes=processes,
            options=(f'randomness.seed={seed}', *options),
            test=False,
        )
        for seed in range(seeds)
        for row in ablation.rows[dataset]
        if rows is None or row in rows
    }
