"""What the paper measures on attention: injectivity, locality, what masking costs, and maps to look at.

The measurements (``layers``, ``places``, ``injectivity``, ``locality``, ``masking``, ``maps``) need torch
alone; ``subjects`` brings models and data from configs, ``commands`` is what ``tools/analyze.py`` runs.
"""
