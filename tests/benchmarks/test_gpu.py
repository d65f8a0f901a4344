"""benchmarks/gpu.py without a GPU: arguments, the comparison before timing, rows and the CSV file."""

import csv
import io
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import gpu
from inline.ops import backend
from inline.utils.errors import exit_on_user_error
from inline.utils.tables import read_csv
from tests.conftest import ROOT

SMALL = '--device cpu --sizes 32 --families DeiT --dtypes float32 --batch 2 --repetitions 2 --warm-up 1'


def run(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, str]], list[str]]:
    """Return the exit code, the printed rows and the lines on stderr."""
    monkeypatch.setattr(sys, 'argv', ['gpu', *words.split()])
    code = gpu.main()
    captured = capsys.readouterr()
    return code, list(csv.DictReader(io.StringIO(captured.out))), captured.err.splitlines()


def test_rows_of_all_implementations_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = gpu.RESULTS.read_text()
    code, rows, errors = run(f'{SMALL} --compile-backend eager', monkeypatch, capsys)
    assert (code, errors) == (0, [])
    assert tuple(rows[0]) == gpu.COLUMNS
    found = [(row['what'], row['pass'], row['implementation']) for row in rows]
    expected = [('residual', name) for name in ('eager', 'compiled')]
    expected += [('module', name) for name in gpu.ON_CPU]
    assert len(found) == 2 * len(expected)
    for name in ('forward', 'forward+backward'):
        assert [(what, peer) for what, kind, peer in found if kind == name] == expected
    for row in rows:
        assert (row['tokens'], row['channels'], row['batch'], row['repetitions']) == ('5', '192', '2', '2')
        assert float(row['median ms']) > 0
        assert float(row['peak MB']) > 0 or row['what'] == 'residual' or row['pass'] == 'forward'
        assert f'torch {torch.__version__}' in row['machine']
        assert f'torch {torch.__version__}' in row['versions']
        assert row['commit']
    # Times of a CPU are not written without --out.
    assert gpu.RESULTS.read_text() == before
    out = tmp_path / 'gpu.csv'
    words = f'{SMALL} --what residual --implementations eager --out {out}'
    assert run(words, monkeypatch, capsys)[0] == run(f'{words} --batch 3', monkeypatch, capsys)[0] == 0
    assert [row['batch'] for row in read_csv(out)] == ['2', '2', '3', '3']


def test_wrong_results_are_reported_and_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attend = gpu.SoftmaxMixer.attend

    def wrong(mixer: gpu.SoftmaxMixer, inputs: object) -> Tensor:
        return attend(mixer, inputs) * (1 if isinstance(mixer, gpu.NaiveSoftmaxMixer) else 1.01)

    monkeypatch.setattr(gpu.SoftmaxMixer, 'attend', wrong)
    code, rows, errors = run(f'{SMALL} --what module --implementations eager sdpa', monkeypatch, capsys)
    assert code == 1
    assert {row['implementation'] for row in rows} == {'eager'}
    assert len(errors) == 2
    start = 'module of DeiT, stage 1, 32x32, float32: sdpa and its reference'
    assert errors[0].startswith(start)
    assert errors[0].endswith('more than 1e-04: not timed')
    assert errors[1] == '1 implementations were not timed, see above'


def test_lack_of_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Tensor:
        raise torch.OutOfMemoryError('CUDA out of memory.\nMore.')

    monkeypatch.setattr(gpu.SoftmaxMixer, 'attend', fail)
    code, rows, errors = run(f'{SMALL} --what module --implementations sdpa', monkeypatch, capsys)
    assert (code, rows) == (1, [])
    assert errors[0] == 'module of DeiT, stage 1, 32x32, float32: CUDA out of memory.'


@pytest.mark.parametrize('fault', [None, 'heads first', 'exception'])
def test_flash_linear_attention(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in of the package, right and with other layouts than expected."""

    def chunk_linear_attn(q: Tensor, k: Tensor, v: Tensor, normalize: bool) -> tuple[Tensor, None]:
        assert not normalize
        if fault == 'exception':
            raise DeprecationWarning('head_first is deprecated\nmore')
        if fault is None:
            return gpu.attend_causal_naive(q, k, v), None
        return gpu.attend_causal_naive(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None

    module = types.SimpleNamespace(chunk_linear_attn=chunk_linear_attn, __spec__=object())
    for name in ('fla', 'fla.ops', 'fla.ops.linear_attn'):
        monkeypatch.setitem(sys.modules, name, module)
    words = f'{SMALL} --what module --implementations eager fla'
    code, rows, errors = run(words, monkeypatch, capsys)
    if fault is None:
        assert (code, errors) == (0, [])
        assert [row['implementation'] for row in rows] == ['eager', 'fla'] * 2
        return
    assert code == 1
    assert {row['implementation'] for row in rows} == {'eager'}
    assert ('fla fails: DeprecationWarning: head_first' if fault == 'exception' else 'not timed') in errors[0]


def test_missing_flash_linear_attention_is_skipped_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.importlib.util, 'find_spec', lambda _: None)
    assert gpu.choose_implementations(['eager', 'fla'], torch.device('cuda')) == ['eager']
    assert capsys.readouterr().err == 'fla is skipped: pip install flash-linear-attention\n'


def test_implementations_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(gpu.importlib.util, 'find_spec', lambda _: object())
    assert tuple(gpu.choose_implementations(None, torch.device('cuda'))) == gpu.IMPLEMENTATIONS
    assert backend._switch == '0'
    assert tuple(gpu.choose_implementations(None, torch.device('cpu'))) == gpu.ON_CPU


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('', '--device cuda: torch finds no GPU, use cpu'),
        ('--device cpu --implementations triton', 'use_triton(True): Triton kernels need a GPU'),
        ('--device cpu --dtypes int8', "argument --dtypes: invalid choice: 'int8'"),
        ('--device cpu --warm-up 0', '--warm-up 0: must be at least 1'),
        ('--device cpu --repetitions 0', '--repetitions 0: must be at least 1'),
        ('--device cpu --sizes 1', '--sizes'),
        ('--device cpu --out no/such/folder.csv', '--out no/such/folder.csv: no/such is not a folder'),
        ('--device cpu --out setup.cfg', '--out setup.cfg: has other columns'),
    ],
)
def test_errors_are_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(sys, 'argv', ['gpu', *words.split()])
    with pytest.raises(SystemExit) as left, exit_on_user_error():
        gpu.main()
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f'error: {message}')
    assert captured.err.count('\n') == 1
    assert not captured.out


def test_a_repeated_measurement_replaces_its_row(tmp_path: Path) -> None:
    path = tmp_path / 'gpu.csv'

    def row(machine: str, tokens: int, milliseconds: str) -> dict[str, object]:
        return {
            **dict.fromkeys(gpu.COLUMNS, 'x'),
            'machine': machine,
            'tokens': tokens,
            'median ms': milliseconds,
        }

    gpu.merge_rows(path, [row('A', 49, '1'), row('B', 49, '2')])
    gpu.merge_rows(path, [row('A', 49, '3'), row('A', 196, '4')])
    found = [(line['machine'], line['tokens'], line['median ms']) for line in read_csv(path)]
    assert found == [('A', '49', '3'), ('B', '49', '2'), ('A', '196', '4')]


def test_results_file_has_the_columns() -> None:
    with gpu.RESULTS.open(newline='') as file:
        assert tuple(next(csv.reader(file))) == gpu.COLUMNS
