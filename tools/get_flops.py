#!/usr/bin/env python
"""Count parameters and multiply-adds: the same as ``inline flops``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('flops')
