"""Custom datasets in their existing layout: ``--data-root PATH`` is enough.

``fitting`` fills in a config with the key ``custom_data`` from the data. The readers are in
``classification``, ``detection`` (with ``voc`` and ``yolo``) and ``segmentation`` (with ``pairs`` and
``palettes``). Each finds the layout, reads the splits and writes lists or COCO JSON to the work directory;
nothing is written to the folder of the dataset.
"""

from inline.datasets.custom.fitting import READERS, fit_to_custom_data
from inline.datasets.custom.layouts import CustomData, ReadOptions, format_summary

__all__ = ['READERS', 'CustomData', 'ReadOptions', 'fit_to_custom_data', 'format_summary']
