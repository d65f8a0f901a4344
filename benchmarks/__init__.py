"""Benchmark scripts. Outputs and gradients are checked before anything is timed."""
