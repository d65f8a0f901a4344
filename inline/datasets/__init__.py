"""Datasets: custom data, ImageNet from folders or zips, digit scenes, image loaders, validation."""
