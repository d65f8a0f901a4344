#!/usr/bin/env python
"""Train the rows of an ablation: the same as ``inline ablate``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('ablate')
