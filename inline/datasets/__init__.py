"""Datasets: digit scenes, ImageNet from folders or zips, custom data, loaders, and checks before a run."""
