#!/usr/bin/env python
"""Reproduce the tables of the paper: the same as ``inline reproduce``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('reproduce')
