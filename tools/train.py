#!/usr/bin/env python
"""Train the model of a config: the same as ``inline train``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('train')
