"""Checks of datasets before a run (``checks``, ``coco``, ``classes``) and skipping of unreadable samples."""
