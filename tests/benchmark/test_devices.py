"""Timing, memory and description all refer to the chosen device."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import ops, speed
from inline.benchmark import CPU, describe_machine, interleave, peak_memory
from inline.benchmark import figure5 as figure5_module
from inline.benchmark.hardware import choose_device
from inline.benchmark.timing import BenchmarkSettings, measure_inference
from inline.utils.errors import UserError

CUDA = torch.device('cuda')
# A device other than the CPU that exists on every machine.
META = torch.device('meta')


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Pretend that there is a GPU; return the devices that were synchronised."""
    synchronized: list[torch.device] = []
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('torch.cuda.get_device_name', lambda device: f'a GPU named {device}')
    monkeypatch.setattr('torch.cuda.synchronize', synchronized.append)
    monkeypatch.setattr('torch.cuda.memory_allocated', lambda device: 3)  # noqa: ARG005 (torch's)
    monkeypatch.setattr('torch.cuda.reset_peak_memory_stats', lambda device: None)  # noqa: ARG005
    monkeypatch.setattr('torch.cuda.max_memory_allocated', lambda device: 10)  # noqa: ARG005
    return synchronized


class DeviceRecorder(nn.Module):
    """Records the devices of its weights and images."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.devices: set[tuple[str, str]] = set()

    def forward(self, image: Tensor) -> None:
        self.devices.add((self.weight.device.type, image.device.type))


def test_gpu_is_the_default_if_available(gpu: list[torch.device]) -> None:  # noqa: ARG001 (a fixture)
    assert choose_device(None) == choose_device('cuda') == CUDA
    assert choose_device('cpu') == CPU


def test_cpu_is_the_default_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    assert choose_device(None) == choose_device('cpu') == CPU
    with pytest.raises(UserError, match='--device cuda: torch finds no GPU'):
        choose_device('cuda')


@pytest.mark.parametrize('command', [ops.main, speed.main])
def test_commands_reject_a_missing_gpu(command: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    monkeypatch.setattr(sys, 'argv', ['command', '--device', 'cuda'])
    with pytest.raises(UserError, match='--device cuda'):
        command()


def test_description_synchronization_and_memory_use_the_gpu(gpu: list[torch.device]) -> None:
    assert 'a GPU named cuda' in describe_machine(CUDA)
    interleave({'run': lambda: None}, 2, CUDA)
    assert gpu == [CUDA] * 4
    assert peak_memory(lambda: None, CUDA) == 7


def test_cpu_measurements_ignore_the_gpu(gpu: list[torch.device]) -> None:
    assert 'GPU' not in describe_machine(CPU)
    interleave({'run': lambda: None}, 2, CPU)
    assert peak_memory(lambda: torch.ones(1000), CPU) == pytest.approx(4000, rel=0.05)
    assert not gpu


@pytest.mark.parametrize('device', [CPU, META])
def test_models_and_images_are_moved_to_the_device(device: torch.device) -> None:
    spy = DeviceRecorder()
    measure_inference(spy, (32, 32), BenchmarkSettings(batch=2, repetitions=1, device=device))
    assert spy.devices == {(device.type, device.type)}


def test_figure5_is_timed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    spies = [DeviceRecorder(), DeviceRecorder()]
    pair = figure5_module.Pair('family', '7', 32, dict(zip(('InLine', 'softmax'), spies, strict=True)))
    for name in ('accuracy_pairs', 'window_pairs', 'resolution_pairs'):
        monkeypatch.setattr(figure5_module, name, lambda _: [pair])
    points = list(
        figure5_module.measure_figure5(Path(), BenchmarkSettings(repetitions=1, device=META), 'here')
    )
    assert len(points) == 6
    assert [spy.devices for spy in spies] == [{('meta', 'meta')}] * 2


def test_attention_modules_are_timed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # Meta tensors have no values to compare.
    monkeypatch.setattr(ops, 'check', lambda *_: None)
    seen: set[str] = set()

    def forward(module: nn.Module, x: Tensor, hw: tuple[int, int]) -> Callable[[], None]:
        def run() -> None:
            out = module(x, hw, x)
            seen.update({out.device.type, *(parameter.device.type for parameter in module.parameters())})

        return run

    monkeypatch.setattr(ops, 'PASSES', {'forward': forward})
    shape = ops.Shape('PVT', (36, 52), 0, 8, 2, 1, (9, 13))
    timed = ops.time_shape(
        shape,
        ('InLine', 'Plain', 'SDPA', 'Linear'),
        device=META,
        dtype='float32',
        batch=1,
        repetitions=1,
        max_scores=10**9,
    )
    assert len(list(timed)) == 4
    assert seen == {'meta'}


def test_backbones_are_timed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, 'compare', lambda *_: None)
    seen: set[str] = set()

    def make_inference(model: nn.Module, image: Tensor) -> Callable[[], None]:
        seen.update({image.device.type, *(parameter.device.type for parameter in model.parameters())})
        return lambda: None

    monkeypatch.setattr(speed, 'make_inference', make_inference)
    monkeypatch.setattr(speed, 'MODELS', {'DeiT-T': speed.MODELS['DeiT-T']})
    bench = speed.Bench(META, 1, iter(range(100)).__next__)
    assert list(speed.backbones(bench))
    assert seen == {'meta'}
