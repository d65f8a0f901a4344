"""The models that the authors released: their names, and their weights under our keys."""
