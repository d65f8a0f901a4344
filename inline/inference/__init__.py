"""Trained models in a program: images in, the toolboxes' own data samples out, and pictures of them."""

from inline.inference.model import InLineModel
from inline.inference.results import Prediction, Predictions, PredictionStream

__all__ = ['InLineModel', 'Prediction', 'PredictionStream', 'Predictions']
