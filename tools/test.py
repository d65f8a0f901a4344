#!/usr/bin/env python
"""Test a checkpoint: the same as ``inline test``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('test')
