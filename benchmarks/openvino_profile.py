"""Where OpenVINO spends its time in bf16 and int8, by kind of operator.

python -m benchmarks.openvino_profile PVT-S DeiT-T --threads 2

Explains how much faster int8 is than bf16: products are quantised, other operators are not, and conversions
are added. The models and files are those of `inline benchmark --runtimes`. Rows are written to
results/measured/openvino_profile.csv in place of earlier ones of the same model, size and threads.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path

from inline.apis.export.openvino_ir import compile_model, has_bf16
from inline.benchmark import CPU, prepare_for_timing
from inline.benchmark.runtimes import MODELS, Job, export_files, make_image
from inline.reproduce.tables import MEASURED
from inline.utils.arguments import check_choice, check_positive
from inline.utils.environment import describe_commit, describe_hardware
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error
from inline.utils.tables import replace_rows

COLUMNS = ('model', 'size', 'threads', 'operator', 'bf16 (ms)', 'int8 (ms)', 'int8, quantised (ms)',
           'commit', 'hardware', 'versions', 'date')  # fmt: skip
TOTAL = 'all'
WARM_UP = 5


def profile(path: Path, size: int, threads: int, repetitions: int) -> dict[tuple[str, bool], float]:
    """Return the median milliseconds per kind of operator, and whether it computes in int8.

    Args:
        path: An IR of OpenVINO.
        size: Height and width of the image.
        threads: Number of CPU threads.
        repetitions: Number of profiled runs.
    """
    request = compile_model(path, 'bf16', threads, PERF_COUNT=True).create_infer_request()
    image = {'image': make_image(size).numpy()}
    runs: list[dict[tuple[str, bool], float]] = []
    for i in range(WARM_UP + repetitions):
        request.infer(image)
        if i < WARM_UP:
            continue
        spent: dict[tuple[str, bool], float] = defaultdict(float)
        for node in request.get_profiling_info():
            # The kernel's name ends in the precision in which it computes.
            in_int8 = node.exec_type.lower().endswith(('_i8', '_u8'))
            spent[node.node_type, in_int8] += node.real_time.total_seconds() * 1e3
        runs.append(spent)
    return {key: statistics.median(run.get(key, 0.0) for run in runs) for key in set().union(*runs)}


def make_rows(
    bf16: Mapping[tuple[str, bool], float], int8: Mapping[tuple[str, bool], float], smallest: float
) -> list[tuple[str, ...]]:
    """Return operator and times, longest first; operators below a share of the total are summed.

    Args:
        bf16, int8: Results of :func:`profile`.
        smallest: Share of the total time in bf16 below which an operator is part of ``other``.
    """
    total = sum(bf16.values())
    kinds = sorted({kind for kind, _ in (*bf16, *int8)}, key=lambda kind: -_time(bf16, kind))
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        is_large = max(_time(bf16, kind), _time(int8, kind)) >= smallest * total
        groups.setdefault(kind if is_large else 'other', []).append(kind)
    if 'other' in groups:
        groups['other'] = groups.pop('other')
    return [
        (
            name,
            *(
                f'{sum(times):.2f}'
                for times in (
                    [_time(bf16, kind) for kind in members],
                    [_time(int8, kind) for kind in members],
                    [int8.get((kind, True), 0.0) for kind in members],
                )
            ),
        )
        for name, members in {**groups, TOTAL: kinds}.items()
    ]


def _time(spent: Mapping[tuple[str, bool], float], kind: str) -> float:
    return spent.get((kind, True), 0.0) + spent.get((kind, False), 0.0)


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('models', nargs='+', metavar='MODEL', help=f'of {", ".join(MODELS)}')
    parser.add_argument('--size', type=int, default=224, help='image side (default: %(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='(default: %(default)s)')
    parser.add_argument('--repetitions', type=int, default=30, help='(default: %(default)s)')
    parser.add_argument(
        '--output',
        type=Path,
        default=MEASURED / 'openvino_profile.csv',
        help='CSV file (default: %(default)s)',
    )
    args = parser.parse_args()
    for name in args.models:
        check_choice('model', name, MODELS)
    for flag in ('size', 'threads', 'repetitions'):
        check_positive(f'--{flag}', getattr(args, flag))
    if not has_bf16():
        raise UserError('this CPU does not compute in bfloat16: there is nothing to compare int8 with')
    prepare_for_timing(args.threads)
    versions = ', '.join(f'{name} {version(name)}' for name in ('openvino', 'nncf'))
    provenance = (describe_commit(), describe_hardware(CPU), versions, date.today().isoformat())
    for name in args.models:
        key = (name, str(args.size), str(args.threads))
        with tempfile.TemporaryDirectory() as folder:
            job = Job(name, args.size, 'export', args.threads, 1, 1.0, folder, ('onnx', 'openvino', 'int8'))
            export_files(job)
            bf16, int8 = (
                profile(job.path(suffix), args.size, args.threads, args.repetitions)
                for suffix in ('.xml', '-int8.xml')
            )
        rows = [(*key, *row, *provenance) for row in make_rows(bf16, int8, smallest=0.03)]
        for row in rows:
            print(*row[:7], sep='\t', flush=True)
        lines = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        replace_rows(args.output, COLUMNS, ('model', 'size', 'threads'), lines)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
