"""A local web page to try a model: its prediction, and the attention of a clicked token in every layer.

``uploads`` reads uploaded images, ``attention_views`` computes the attention, ``html`` renders the parts of
the page, ``controller`` handles its events, and ``app`` is the page and the server of ``tools/serve.py``.
"""
