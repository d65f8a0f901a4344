#!/usr/bin/env python
"""Analyse the attention of models: the same as ``inline analyze``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('analyze')
