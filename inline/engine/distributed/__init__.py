"""Distributed runs: launcher, set-up, sharded training."""
