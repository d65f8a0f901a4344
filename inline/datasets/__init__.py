"""Data: digit scenes that need no download, ImageNet from folders or zips, checks of public data sets."""
