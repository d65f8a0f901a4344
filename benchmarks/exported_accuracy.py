"""Accuracy of exported files in bf16 and int8 next to that of PyTorch in float32.

python -m benchmarks.exported_accuracy CONFIG CHECKPOINT

Exports the model to OpenVINO in bf16 and int8 and to ONNX in int8, calibrated on the training data of the
config, and evaluates each with the config's own evaluator. Rows are added to
results/measured/exported_accuracy.csv, in place of earlier ones of the same config and file. Each file has a
process of its own: ONNX Runtime crashed in one that had quantised with NNCF.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

from inline.apis.export.run import ExportOptions, export
from inline.apis.loading import find_config
from inline.engine.config import set_data_root
from inline.engine.config_files import find_config_path
from inline.openmmlab.patches import apply_patches, read_data_files_safely
from inline.reproduce.provenance import (
    PROVENANCE,
    Inputs,
    data_digest,
    path_digest,
    provenance_columns,
    text_digest,
)
from inline.reproduce.tables import BOX_AP, MASK_AP, MEASURED, MIOU, TOP1
from inline.utils.arguments import check_positive
from inline.utils.environment import describe_environment
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error
from inline.utils.tables import replace_rows

COLUMNS = ('model', 'file', 'metric', 'float32', 'exported', 'images', 'size (MB)', *PROVENANCE)
# Format, precision, and whether the file is quantised.
FILES = {
    'openvino-bf16': ('openvino', 'bf16', False),
    'openvino-int8': ('openvino', 'fp32', True),
    'onnx-int8': ('onnx', 'fp32', True),
}
METRICS = (TOP1, BOX_AP, MASK_AP, MIOU)


def measure(
    cfg: Config, options: ExportOptions, shown: Mapping[str, str], provenance: Mapping[str, str]
) -> list[dict[str, str]]:
    """Export and evaluate a file; return a row per metric.

    Args:
        cfg: Config of the model.
        options: With `out` and `evaluate`.
        shown: Further columns of every row.
        provenance: The provenance columns.
    """
    for line in export(cfg, options):
        print(line, flush=True)
    assert options.out is not None
    accuracy: dict[str, Any] = json.loads(Path(f'{options.out}.json').read_text())['accuracy']
    files = [options.out, *options.out.parent.glob(f'{options.out.stem}.bin')]
    return [
        {
            **shown,
            'file': options.label,
            'metric': metric.title,
            'float32': f'{accuracy["float32"][metric.key] * metric.scale:.2f}',
            'exported': f'{accuracy[options.label][metric.key] * metric.scale:.2f}',
            'images': str(accuracy['images']),
            'size (MB)': f'{sum(path.stat().st_size for path in files) / 1e6:.2f}',
            **provenance,
        }
        for metric in METRICS
        if metric.key in accuracy['float32']
    ]


def main() -> None:
    parser = OneLineParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file, or its name in configs/')
    parser.add_argument('checkpoint', help='file, folder, URL, or the name of packaged weights')
    parser.add_argument('--files', nargs='+', choices=FILES, default=list(FILES), help='(default: all)')
    parser.add_argument('--images', type=int, metavar='N', help='random test images (default: all)')
    parser.add_argument('--data-root', type=Path, metavar='FOLDER', help='folder of all datasets')
    parser.add_argument(
        '--output',
        type=Path,
        default=MEASURED / 'exported_accuracy.csv',
        help='CSV file (default: %(default)s)',
    )
    args = parser.parse_args()
    check_positive('--images', args.images)
    if len(args.files) > 1:
        for name in args.files:
            words = [sys.executable, '-m', 'benchmarks.exported_accuracy', *sys.argv[1:], '--files', name]
            if subprocess.run(words, check=False).returncode:
                raise UserError(f'measuring {name} failed, see above')
        return
    apply_patches()
    read_data_files_safely()
    path = find_config_path(args.config).resolve()
    cfg = find_config(path)
    if args.data_root is not None:
        set_data_root(cfg, args.data_root)
    weights = {args.checkpoint: path_digest(args.checkpoint)}
    settings = json.dumps(cfg.to_dict(), sort_keys=True, default=repr)
    inputs = Inputs(text_digest(settings), weights, data_digest(cfg, ['train', 'test']))
    provenance = provenance_columns(path, inputs, [describe_environment()])
    file_format, precision, int8 = FILES[args.files[0]]
    with tempfile.TemporaryDirectory() as folder:
        options = ExportOptions(
            name=path.stem,
            checkpoint=args.checkpoint,
            format=file_format,
            precision=precision,
            int8=int8,
            evaluate=True,
            eval_images=args.images,
            out=Path(folder, 'model.xml' if file_format == 'openvino' else 'model.onnx'),
            measure=False,
        )
        rows = measure(cfg, options, {'model': path.stem}, provenance)
    replace_rows(args.output, COLUMNS, ('model', 'file'), rows)


if __name__ == '__main__':
    with exit_on_user_error():
        main()
