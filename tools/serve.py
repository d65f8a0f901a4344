#!/usr/bin/env python
"""Try a model in a browser: the same as ``inline serve``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('serve')
