"""Digit scenes: handwritten digits on photographs, generated without a download."""
