"""Helpers that depend on no other package of ours: errors, argument checks, atomic files, text tables."""
