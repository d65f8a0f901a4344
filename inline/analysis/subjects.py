"""What is measured: a model of a config with the weights of a checkpoint, and images of its test data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, init_default_scope
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from inline.analysis.layers import Layer, choose_layers, find_layers
from inline.engine.config import check_checkpoint, check_paths, load_config, set_data_root
from inline.engine.launch import drop_pretrained
from inline.engine.pretrained import read_weights
from inline.engine.safe_loading import install as install_safe_loading
from inline.errors import UserError
from inline.weights import compare

Batch = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, what it is called in tables and figures, and the layers to look at."""

    label: str
    cfg: Config
    model: BaseModel
    layers: list[Layer]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def prepare(self, batch: Batch) -> Batch:
        """Inputs as the backbone takes them (B, 3, H, W), with the data samples."""
        prepared: Batch = self.model.data_preprocessor(batch, False)
        dtype = next(self.model.backbone.parameters()).dtype
        return {**prepared, 'inputs': prepared['inputs'].to(dtype)}

    def run_backbone(self, batch: Batch) -> None:
        """For whoever watches its layers."""
        self.model.backbone(self.prepare(batch)['inputs'])

    def predict(self, batch: Batch) -> list[Any]:
        samples: list[Any] = self.model(**self.prepare(batch), mode='predict')
        return samples


def read_subject(
    config: str,
    checkpoint: str,
    *,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
    data_root: str | None = None,
    layers: Sequence[str] | None = None,
) -> Subject:
    """Build a config's model and load a checkpoint, all of whose weights must fit."""
    install_safe_loading()
    check_checkpoint(checkpoint)
    cfg = load_config(config, options)
    if data_root:
        set_data_root(cfg, data_root)
    init_default_scope(cfg.default_scope)
    drop_pretrained(cfg.model)
    cfg.model.pop('pretrained', None)
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    # Statistics over several GPUs are fixed numbers in a test.
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    load_weights(model, checkpoint, config)
    model.to('cuda' if torch.cuda.is_available() else 'cpu').eval()
    chosen = choose_layers(find_layers(model), layers)
    return Subject(label or Path(config).stem, cfg, model, chosen)


def load_weights(model: nn.Module, checkpoint: str, config: str) -> None:
    """Load a checkpoint of the config's model: all of both must fit."""
    weights = read_weights(checkpoint)
    fit = compare(model, weights)
    if fit.missing or fit.misshapen or fit.unused:
        raise UserError(f'checkpoint {checkpoint!r} does not fit {config!r}: {fit.describe()}')
    model.load_state_dict(weights)


def sample_images(subject: Subject, images: int | None, seed: int, batch_size: int) -> DataLoader[Any]:
    """Batches of so many images out of a config's test data, chosen by the seed; all if None."""
    cfg = subject.cfg
    if cfg.get('test_dataloader') is None:
        raise UserError(
            f'config of {subject.label!r} has no test_dataloader: there are no images to measure on'
        )
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


def count_batch(batch: Batch) -> int:
    return len(batch['inputs'])


def read_image(subject: Subject, path: str) -> tuple[Batch, NDArray[np.uint8]]:
    """One image after the test pipeline, as a batch and as RGB (H, W, 3) to draw."""
    if not Path(path).is_file():
        raise UserError(f'image {path!r} does not exist')
    if cv2.imread(path) is None:
        raise UserError(f'{path!r} is no image that can be read')
    init_default_scope(subject.cfg.default_scope)
    dataset = _innermost((subject.cfg.get('test_dataloader') or {}).get('dataset'))
    # There is no truth to load for an image of one's own.
    pipeline = [step for step in dataset['pipeline'] if 'LoadAnnotations' not in step['type']]
    packed = Compose(pipeline)({'img_path': path, 'img_id': 0})
    # OpenMMLab's pipelines end in BGR.
    shown = packed['inputs'].flip(0).permute(1, 2, 0).numpy()
    return pseudo_collate([packed]), np.ascontiguousarray(shown)


def _innermost(dataset: Any) -> Mapping[str, Any]:
    """The data set inside wrappers, which has the pipeline."""
    while isinstance(dataset, Mapping) and 'pipeline' not in dataset and 'dataset' in dataset:
        dataset = dataset['dataset']
    if not isinstance(dataset, Mapping) or 'pipeline' not in dataset:
        raise UserError('the config’s test_dataloader has no pipeline: it says how an image is prepared')
    return dataset
