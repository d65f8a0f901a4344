"""Benchmarks: time, peak memory and FLOPs of models, the paper's Figure 5, training steps and soak tests."""

from inline.benchmark.hardware import CPU, describe_machine, prepare_for_timing
from inline.benchmark.timing import Timing, interleave, peak_memory

__all__ = ['CPU', 'Timing', 'describe_machine', 'interleave', 'peak_memory', 'prepare_for_timing']
