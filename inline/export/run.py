"""From a config and a checkpoint to a checked file, with a summary of what it is."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from inline.columns import align
from inline.engine.complexity import count
from inline.errors import UserError
from inline.export.accuracy import check_can_evaluate, check_test_size, evaluate
from inline.export.agreement import check_agreement, relative_difference, shapes_to_try
from inline.export.formats import (
    FORMATS,
    MAX_OPEN_SIZE,
    MIN_OPEN_SIZE,
    Run,
    size_of_example,
    trace,
    write_int8,
)
from inline.export.model import Subject, backbone_size, build_subject, usual_size
from inline.measure import CPU, describe_machine, interleave
from inline.models.backbones.common import MIN_SIZE

REPETITIONS = 7


@dataclass(frozen=True)
class Request:
    """What is wanted.

    Args:
        name: What the model is called.
        checkpoint: Its weights.
        kind: A key of FORMATS.
        dynamic: Whether batch, height and width stay open.
        size: Height and width to trace and measure at; None for the config's own.
        what: 'model' or 'backbone'.
        with_preprocessing: Whether the file takes pixels of 0 to 255.
        int8: Whether to quantise the linear layers.
        evaluate: Whether to measure the file on the config's test data.
        out: The file to write; None for one beside the checkpoint.
    """

    name: str
    checkpoint: str
    kind: str
    dynamic: bool = False
    size: tuple[int, int] | None = None
    what: str = 'model'
    with_preprocessing: bool = False
    int8: bool = False
    evaluate: bool = False
    out: Path | None = None


def export(cfg: Config, request: Request) -> Iterator[str]:
    """Write the file and a JSON file beside it, and tell what was done line by line.

    Both appear when the file has been read back and agrees with the model, or not at all.
    """
    size = request.size or usual_size(cfg)
    if request.dynamic and request.size is None:
        # A model for tiny images can be exported for all others.
        size = (max(size[0], MIN_OPEN_SIZE), max(size[1], MIN_OPEN_SIZE))
    out = request.out or default_path(request)
    check(cfg, request, size, out)
    subject = build_subject(
        cfg, request.checkpoint, what=request.what, with_preprocessing=request.with_preprocessing
    )
    bound = None if request.dynamic else size
    if request.evaluate:
        check_test_size(cfg, subject.toolbox_model, bound)
    kind, channels = FORMATS[request.kind], int(subject.image['channels'])
    facts = describe(subject, request, size)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--out {str(out)!r}: {error.strerror}') from error
    # In the same folder, so that putting the finished file in place is one step.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix='.export-') as folder:
        made = Path(folder) / f'float{kind.ending}'
        example = size_of_example(size, backbone_size(cfg)) if request.dynamic else size
        yield f'tracing at {example[0]}×{example[1]} …'
        program = trace(subject.network, example, channels, request.dynamic)
        yield kind.while_writing
        kind.write(program, facts['outputs'], facts, made)
        run = kind.load(made)
        yield 'comparing with PyTorch …'
        shapes = shapes_to_try(size, request.dynamic)
        worst = check_agreement(subject.network, run, shapes, channels)
        tried = ', '.join(f'{batch}×{height}×{width}' for batch, height, width in shapes)
        yield f'agrees with PyTorch to {worst:.1e} at {tried} (images×height×width)'
        if request.int8:
            quantised = Path(folder) / f'int8{kind.ending}'
            write_int8(made, quantised)
            made, run = quantised, kind.load(quantised)
        yield from summarise(subject.network, run, request, size, made.stat().st_size, channels)
        if request.evaluate:
            yield from compare_accuracy(cfg, subject, run, request, bound)
        side = Path(folder) / 'facts.json'
        side.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + '\n')
        os.replace(made, out)
        os.replace(side, f'{out}.json')
    yield f'wrote {out} and {out}.json'


def check(cfg: Config, request: Request, size: tuple[int, int], out: Path) -> None:
    """Refuse what cannot be, before anything is built."""
    least = MIN_OPEN_SIZE if request.dynamic else MIN_SIZE
    if not least <= min(size) <= max(size) <= MAX_OPEN_SIZE:
        raise UserError(
            f'--size {size[0]}x{size[1]}: each side must be from {least} to {MAX_OPEN_SIZE} pixels'
            + (' with --dynamic' if request.dynamic else '')
        )
    if request.int8 and request.kind != 'onnx':
        raise UserError(
            f'--int8 goes with --format onnx, not {request.kind}: torch no longer has quantisation of its own'
        )
    ending = Path(f'model{FORMATS[request.kind].ending}').suffix
    if request.out is not None and request.out.suffix != ending:
        raise UserError(f'--out {str(request.out)!r}: a file of --format {request.kind} ends in {ending}')
    for path in (out, Path(f'{out}.json')):
        if path.is_dir():
            raise UserError(f'--out {str(out)!r}: {str(path)!r} is a folder, give the name of a file')
    if request.evaluate:
        if request.what == 'backbone' or request.with_preprocessing:
            raise UserError('--evaluate goes with whole models that take normalised images')
        check_can_evaluate(cfg)


def default_path(request: Request) -> Path:
    """Beside the checkpoint; in this folder if that is an address."""
    parts = [request.name, *(['backbone'] if request.what == 'backbone' else [])]
    parts += ['int8'] if request.int8 else []
    folder = Path() if '://' in request.checkpoint else Path(request.checkpoint).parent
    return folder / ('-'.join(parts) + FORMATS[request.kind].ending)


def describe(subject: Subject, request: Request, size: tuple[int, int]) -> dict[str, Any]:
    """What whoever runs the file must know."""
    sides: Any = {'from': MIN_OPEN_SIZE, 'to': MAX_OPEN_SIZE}
    return {
        'model': request.name,
        'task': subject.task,
        'input': {
            **subject.image,
            'batch': 'any' if request.dynamic else 1,
            'height': sides if request.dynamic else size[0],
            'width': sides if request.dynamic else size[1],
        },
        'outputs': list(subject.network.outputs),
        'weights': 'int8 in linear layers' if request.int8 else 'float32',
        'classes': list(subject.classes),
        'made with': f'torch {torch.__version__}',
    }


def summarise(
    network: nn.Module, run: Run, request: Request, size: tuple[int, int], file_bytes: int, channels: int
) -> Iterator[str]:
    """Parameters, multiply-adds and latency, a line each."""
    image = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))
    cost = count(network, lambda: network(image))[-1]
    label = f'{request.kind}, int8' if request.int8 else request.kind
    timings = interleave(
        {'PyTorch': partial(_infer, network, image), label: lambda: run(image)}, REPETITIONS, CPU
    )
    shape = f'{size[0]}×{size[1]}'
    rows = [
        ('parameters', f'{cost.parameters / 1e6:.2f}', 'M'),
        ('FLOPs', f'{cost.multiply_adds / 1e9:.3f}', f'G multiply-adds at {shape}'),
        ('file', f'{file_bytes / 1e6:.2f}', 'MB'),
        *(
            (f'latency, {name}', f'{timing.median * 1e3:.1f}', f'ms, one image of {shape}')
            for name, timing in timings.items()
        ),
    ]
    if request.int8:
        with torch.no_grad():
            difference = relative_difference(run(image), network(image))
        rows.append(('largest difference', f'{100 * difference:.1f}', '% of the largest output'))
    yield from align(rows, right=[1])
    yield f'on {describe_machine(CPU)}, threads: {torch.get_num_threads()}'


def compare_accuracy(
    cfg: Config, subject: Subject, run: Run, request: Request, bound: tuple[int, int] | None
) -> Iterator[str]:
    """The metrics of the config's test, of the model and of the file."""
    before = evaluate(cfg, subject.toolbox_model)
    after = evaluate(cfg, subject.toolbox_model, run, bound)
    label = 'int8' if request.int8 else request.kind
    yield from align(
        [('test', 'PyTorch', label), *((m, f'{before[m]:.2f}', f'{after[m]:.2f}') for m in after)],
        right=[1, 2],
    )


def _infer(network: nn.Module, image: Tensor) -> None:
    with torch.inference_mode():
        network(image)
