#!/usr/bin/env python
"""Measure the speed of models: the same as ``inline benchmark``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('benchmark')
