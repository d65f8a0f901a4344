"""Latency, throughput and peak memory of whole models."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from inline.measure.machine import CPU
from inline.measure.memory import peak_memory
from inline.measure.timing import Timing, interleave

DTYPES = {'float32': None, 'bfloat16': torch.bfloat16, 'float16': torch.float16}


@dataclass(frozen=True)
class Settings:
    """How models are timed.

    Args:
        batch: Images at once for the throughput; the latency is of one image.
        repetitions: Of every measurement.
        dtype: A name of DTYPES; half precision is autocast's.
        device: Where models and images go.
    """

    batch: int = 1
    repetitions: int = 7
    dtype: str = 'float32'
    device: torch.device = CPU


@dataclass(frozen=True)
class Speed:
    """Of one model at one image size; the peak beyond the weights themselves."""

    latency: Timing
    images_per_second: float
    peak_bytes: int


def measure(models: Mapping[str, tuple[nn.Module, tuple[int, int]]], settings: Settings) -> dict[str, Speed]:
    """Inference of each model on images of its (height, width), all in turn."""
    single, batched, device = {}, {}, settings.device
    for name, (model, shape) in models.items():
        model.to(device).eval()
        single[name] = inference(model, torch.randn(1, 3, *shape, device=device), settings.dtype)
        image = torch.randn(settings.batch, 3, *shape, device=device)
        batched[name] = inference(model, image, settings.dtype)
    latencies = interleave(single, settings.repetitions, device)
    throughputs = latencies if settings.batch == 1 else interleave(batched, settings.repetitions, device)
    return {
        name: Speed(
            latencies[name],
            settings.batch / throughputs[name].median,
            peak_memory(batched[name], device),
        )
        for name in models
    }


def inference(model: nn.Module, image: Tensor, dtype: str = 'float32') -> Callable[[], None]:
    return partial(_infer, model, image, DTYPES[dtype])


def _infer(model: nn.Module, image: Tensor, dtype: torch.dtype | None) -> None:
    precision = nullcontext() if dtype is None else torch.autocast(image.device.type, dtype)
    with torch.inference_mode(), precision:
        model(image)
