#!/usr/bin/env python
"""Publish a checkpoint: the same as ``inline publish``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('publish')
