"""Models to analyse, built from a config and a checkpoint, and images from their test data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, init_default_scope
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Subset

from inline.analysis.layers import Layer, choose_layers, find_layers
from inline.apis.inputs import ImageSource, InferencePipeline, check_files_exist, to_rgb_image
from inline.apis.loading import build_model
from inline.datasets.validation.checks import check_paths
from inline.engine.config import load_config, set_data_root
from inline.utils.errors import UserError

Batch = dict[str, Any]


@dataclass(frozen=True)
class AnalysisModel:
    """A model in evaluation mode.

    Args:
        label: Name in tables and figures.
        cfg: The config that it was built from.
        model: The model.
        layers: The attention layers to analyse.
    """

    label: str
    cfg: Config
    model: BaseModel
    layers: list[Layer]

    def prepare(self, batch: Batch) -> Batch:
        """Return the inputs of the backbone (B, 3, H, W) and the data samples."""
        prepared: Batch = self.model.data_preprocessor(batch, False)
        dtype = next(self.model.backbone.parameters()).dtype
        return {**prepared, 'inputs': prepared['inputs'].to(dtype)}

    def run_backbone(self, batch: Batch) -> None:
        """Run the backbone for the hooks on its layers."""
        self.model.backbone(self.prepare(batch)['inputs'])

    def predict(self, batch: Batch) -> list[Any]:
        samples: list[Any] = self.model(**self.prepare(batch), mode='predict')
        return samples


def load_analysis_model(
    config: str,
    checkpoint: str,
    *,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
    data_root: str | None = None,
    layers: Sequence[str] | None = None,
) -> AnalysisModel:
    """Build the model of a config with the weights of a checkpoint.

    Args:
        config: Path of the config file, or its name in ``configs/``.
        checkpoint: Path or URL of the checkpoint.
        label: Name of the model; by default the name of the config file.
        options: Overrides of config values.
        data_root: Folder that contains the datasets.
        layers: Keys of the layers to analyse; all if None.
    """
    cfg = load_config(config, options)
    if data_root:
        set_data_root(cfg, data_root)
    init_default_scope(cfg.default_scope)
    model, _ = build_model(cfg, checkpoint)
    model.to('cuda' if torch.cuda.is_available() else 'cpu')
    chosen = choose_layers(find_layers(model), layers)
    return AnalysisModel(label or Path(cfg.filename).stem, cfg, model, chosen)


def sample_images(model: AnalysisModel, images: int | None, seed: int, batch_size: int) -> DataLoader[Any]:
    """Return a loader of `images` random images of the test data, or of all of them if None."""
    cfg = model.cfg
    if cfg.get('test_dataloader') is None:
        raise UserError(f'the config of {model.label!r} has no test_dataloader, which provides the images')
    check_paths(cfg, ('test_dataloader',))
    init_default_scope(cfg.default_scope)
    dataset: Dataset[Any] = DATASETS.build(cfg.test_dataloader.dataset)
    total = len(dataset)  # type: ignore[arg-type]
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = range(total) if images is None else sorted(order[:images])
    return DataLoader(
        Subset(dataset, chosen),
        batch_size=min(batch_size, cfg.test_dataloader.get('batch_size', 1)),
        num_workers=cfg.test_dataloader.get('num_workers', 0),
        collate_fn=pseudo_collate,
    )


def read_image(model: AnalysisModel, path: str) -> tuple[Batch, NDArray[np.uint8]]:
    """Apply the test pipeline to an image file; return a batch of one and the RGB image (H, W, 3)."""
    source = ImageSource('', path=Path(path))
    check_files_exist([source])
    packed = InferencePipeline(model.cfg)(source)
    return pseudo_collate([packed]), to_rgb_image(packed['inputs'])
