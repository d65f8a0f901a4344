"""The command ``inline``: ``main`` selects a subcommand, and every other module is one.

A module has a function ``main`` that reads ``sys.argv`` and runs. ``tools/*.py`` call the same functions.
"""
