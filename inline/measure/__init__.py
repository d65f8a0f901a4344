"""Measuring time and memory, fairly enough that two numbers of one run can be compared."""

from inline.measure.machine import CPU, describe_machine, prepare_for_timing
from inline.measure.memory import peak_memory
from inline.measure.timing import Timing, interleave

__all__ = ['CPU', 'Timing', 'describe_machine', 'interleave', 'peak_memory', 'prepare_for_timing']
