"""Python API for trained models: inference, results, drawing, export and a local demo page."""

from inline.apis.inference import InLineModel
from inline.apis.results import Prediction, Predictions, PredictionStream

__all__ = ['InLineModel', 'Prediction', 'PredictionStream', 'Predictions']
