#!/usr/bin/env python
"""Convert a checkpoint: the same as ``inline convert``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('convert')
