"""A page on this machine to try a model on: its prediction, and what a clicked token attends to.

``uploads`` reads what is dropped, ``served`` are the models, ``views`` images as they see them, ``looks``
what layers do at a point, ``predictions`` and ``panels`` what is said and shown of it. ``desk`` puts these
together; ``app`` is the page and its server, which ``tools/serve.py`` starts.
"""
