"""Handwritten digits and photographs from installed wheels, the sources of the digit scenes."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import skimage
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from inline.utils.errors import UserError

Split = Literal['train', 'val']
SPLITS: tuple[Split, ...] = ('train', 'val')
NUM_CLASSES = 10
VAL_FRACTION = 0.2

# Natural photographs only, without text, digits or synthetic patterns.
PHOTOGRAPHS = (
    'astronaut.png',
    'brick.png',
    'camera.png',
    'chelsea.png',
    'coffee.png',
    'coins.png',
    'grass.png',
    'gravel.png',
    'hubble_deep_field.jpg',
    'ihc.png',
    'moon.png',
    'motorcycle_left.png',
    'retina.jpg',
    'rocket.jpg',
)
# Larger photographs are shrunk, because a small crop of them would be a single flat color.
MAX_PHOTOGRAPH_SIDE = 448
# Mean of a background, of 255: dark, so that bright ink has contrast.
BRIGHTNESS = (30, 100)


@dataclass(frozen=True)
class DigitSources:
    """Digits, their split, and photographs.

    Attributes:
        digits: (N, 8, 8) ink density in 0..1.
        indices: For each split and class, indices into `digits` in a shuffled order.
        photographs: BGR images (H, W, 3) of uint8.
    """

    digits: NDArray[np.float32]
    indices: dict[Split, list[NDArray[np.int64]]]
    photographs: list[NDArray[np.uint8]]


def load_sources(seed: int) -> DigitSources:
    """Load digits and photographs; the seed determines the split of the digits."""
    bunch = load_digits()
    digits = bunch.images.astype(np.float32)
    digits /= digits.max(axis=(1, 2), keepdims=True)
    return DigitSources(digits, split_digits(bunch.target, seed), load_photographs())


def split_digits(labels: NDArray[np.int64], seed: int) -> dict[Split, list[NDArray[np.int64]]]:
    """Split the digits of each class separately, so that both splits have the same class balance."""
    indices: dict[Split, list[NDArray[np.int64]]] = {'train': [], 'val': []}
    rng = np.random.default_rng([seed])
    for label in range(NUM_CLASSES):
        of_class = rng.permutation(np.flatnonzero(labels == label))
        num_val = round(len(of_class) * VAL_FRACTION)
        indices['val'].append(of_class[:num_val])
        indices['train'].append(of_class[num_val:])
    return indices


def load_photographs() -> list[NDArray[np.uint8]]:
    """Read the photographs by path, because `skimage.data` would download missing ones."""
    folder = Path(skimage.__file__).parent / 'data'
    photographs = []
    for name in PHOTOGRAPHS:
        photograph = cv2.imread(str(folder / name), cv2.IMREAD_COLOR) if (folder / name).is_file() else None
        if photograph is None:
            raise UserError(
                f'photograph {name!r} cannot be read in {folder} (scikit-image {version("scikit-image")}): '
                'install a scikit-image wheel that includes it, such as 0.26.0'
            )
        shrink = MAX_PHOTOGRAPH_SIDE / max(photograph.shape[:2])
        if shrink < 1:
            photograph = cv2.resize(photograph, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA)
        photographs.append(photograph.astype(np.uint8))
    return photographs


def crop_photograph(
    rng: np.random.Generator, photographs: list[NDArray[np.uint8]], size: int
) -> NDArray[np.float32]:
    """Return a (size, size, 3) background in 0..255: a random photograph, crop, scale, flip and colors."""
    photograph = photographs[rng.integers(len(photographs))]
    height, width = photograph.shape[:2]
    largest = min(height, width)
    smallest = min(0.75 * size, 0.5 * largest)
    side = round(np.exp(rng.uniform(np.log(smallest), np.log(largest))))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    crop = photograph[top : top + side, left : left + side]
    interpolation = cv2.INTER_AREA if side > size else cv2.INTER_LINEAR
    crop = cv2.resize(crop, (size, size), interpolation=interpolation).astype(np.float32)
    if rng.random() < 0.5:
        crop = cv2.flip(crop, 1)
    return _jitter_colors(rng, crop)


def _jitter_colors(rng: np.random.Generator, image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Darken it and change saturation, contrast and white balance, with one linear map of the channels."""
    saturation, brightness = rng.uniform(0.4, 1.3), rng.uniform(*BRIGHTNESS)
    # Contrast is only reduced, so that digits stay visible.
    contrast = rng.uniform(0.3, 0.8)
    gain = rng.uniform(0.8, 1.2, size=3)
    mean = np.array(cv2.mean(image)[:3])
    dimming = min(1.0, brightness / max(float(mean.mean()), 1.0))
    matrix = gain[:, None] * contrast * (saturation * np.eye(3) + (1 - saturation) / 3)
    offset = gain * (dimming - contrast) * mean
    jittered: NDArray[np.float32] = cv2.transform(image, np.column_stack([matrix, offset]))
    return np.clip(jittered, 0, 255)
