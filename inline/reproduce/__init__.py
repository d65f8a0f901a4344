"""Reproduction of the paper: its tables, ablations and claims, and the records of what was measured."""
