"""Data that needs no download: digit scenes, composed from files inside installed wheels."""
