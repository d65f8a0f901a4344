#!/usr/bin/env python
"""Export a trained model: the same as ``inline export``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('export')
