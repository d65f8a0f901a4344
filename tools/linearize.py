#!/usr/bin/env python
"""Turn a softmax model into an InLine model: the same as ``inline linearize``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('linearize')
