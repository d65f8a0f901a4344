#!/usr/bin/env python
"""Predict images with a trained model: the same as ``inline predict``."""

from inline.commands.main import run

if __name__ == '__main__':
    run('predict')
