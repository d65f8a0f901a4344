"""``inline doctor``: one line per check, what to do about each problem, and the exit code."""

import sys
from pathlib import Path

import pytest
import torch

from inline.commands import doctor
from inline.commands.doctor import Check
from inline.utils import extras


def outcome(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> int:
    monkeypatch.setattr(sys, 'argv', ['inline doctor'])
    monkeypatch.setattr(doctor, 'run_checks', lambda: iter(checks))
    return doctor.main()


def test_only_errors_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check('ok', 'torch', '2.13.0'), Check('missing', '[timm]', 'timm: install it')]
    assert outcome(monkeypatch, *checks) == 0
    printed = ['ok       torch        2.13.0', 'missing  [timm]       timm: install it']
    assert capsys.readouterr().out.splitlines() == printed
    assert outcome(monkeypatch, *checks, Check('error', 'mmcv ops', 'do not run')) == 1


def test_old_python_and_torch_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_python().status == doctor.check_torch().status == 'ok'
    monkeypatch.setattr(sys, 'version_info', (3, 10, 4))
    assert doctor.check_python() == ('error', 'Python', '3.10.4: install 3.11 or newer')
    monkeypatch.setattr(torch, '__version__', '2.9.1+cpu')
    assert doctor.check_torch() == ('error', 'torch', "2.9.1+cpu is too old: pip install 'torch>=2.12'")
    monkeypatch.setitem(sys.modules, 'torch', None)
    assert doctor.check_torch().message.endswith("pip install 'torch>=2.12'")


@pytest.mark.parametrize(
    ('program', 'cuda', 'message'),
    [
        (None, None, 'none found: everything runs on the CPU'),
        ('/usr/bin/nvidia-smi', None, 'install the CUDA build of torch'),
        ('/usr/bin/nvidia-smi', '12.8', 'update the driver'),
    ],
)
def test_gpu_that_torch_cannot_use(
    program: str | None, cuda: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, 'which', lambda _: program)
    monkeypatch.setattr(torch.version, 'cuda', cuda)
    check = doctor.check_gpu()
    assert check.status == 'missing'
    assert message in check.message


def test_missing_and_broken_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, 'find_spec', lambda name: None if name == 'onnxscript' else name)
    expected = "onnxscript: pip install 'inline-attention[export]' for ONNX, OpenVINO, int8"
    assert doctor.check_extra('export') == ('missing', '[export]', expected)
    assert doctor.check_extra('serve').status == 'ok'

    def fail() -> str:
        raise RuntimeError('no kernel\nsecond line')

    assert doctor.run_check('mmcv ops', fail) == ('error', 'mmcv ops', 'no kernel; see docs/installation.md')
    monkeypatch.setattr(doctor, 'CONFIGS', tmp_path)
    assert doctor.check_package().status == 'error'


def test_toolboxes_are_not_imported_without_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, 'find_spec', lambda _: None)
    subjects = [check.subject for check in doctor.run_checks()]
    assert subjects == ['Python', 'inline', 'torch', 'GPU', *(f'[{extra}]' for extra in extras.EXTRAS)]
