"""Checking a copy of a public data set, and linking it to where the configs expect it.

One module a data set knows what belongs there and returns its findings as parts (``report.py``); images are
decoded by several processes (``images.py``); ``run.py`` goes from a path to an exit code.
"""
