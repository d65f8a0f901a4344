"""Measurements of attention: injectivity, locality, accuracy under masking, attention maps and probe tasks.

``layers``, ``injectivity``, ``locality``, ``masking``, ``maps`` and ``probes`` need only torch. ``models``
builds models and data from configs. ``commands`` implements ``tools/analyze.py``.
"""
