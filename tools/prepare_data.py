#!/usr/bin/env python
"""Check and link a dataset: the same as ``inline prepare-data``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('prepare-data')
