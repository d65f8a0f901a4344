"""Rendering of handwritten digits on photographs: one per classification image, several per scene."""

from dataclasses import dataclass, field, fields
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from inline.datasets.digits.sources import NUM_CLASSES, SPLITS, DigitSources, Split, crop_photograph
from inline.utils.errors import UserError

# Labels of label maps, as in ADE20K: 0 means unlabelled (not used here).
BACKGROUND_LABEL = 1
FIRST_DIGIT_LABEL = 2

# Largest fraction of the ink of a digit that later digits may cover.
MAX_HIDDEN = 0.3
# Largest intersection of two boxes, as a fraction of the smaller one.
MAX_BOX_OVERLAP = 0.25
# Range of the luminance difference (of 255) between ink and background. It is larger on a textured one.
MIN_CONTRAST = 80.0
MAX_CONTRAST = 160.0

# Longer side of the digit of a classification image, as a fraction of the image size.
CLASSIFICATION_DIGIT_FRACTION = (0.5, 0.95)

_BGR_TO_LUMINANCE = np.array([0.114, 0.587, 0.299], dtype=np.float32)
_GLYPH_UPSAMPLING = 6
_GLYPH_MARGIN = 2
_CLASSIFICATION, _SCENE = 0, 1


def _option(default: int, low: int, high: int, help: str) -> Any:
    return field(default=default, metadata={'low': low, 'high': high, 'help': help})


@dataclass(frozen=True)
class DigitScenesOptions:
    """Options of the digit scenes; a value out of its range raises a :class:`UserError`."""

    seed: int = _option(0, 0, 2**32 - 1, 'seed of the split and of all images')
    classification_size: int = _option(48, 32, 1024, 'side length of classification images in pixels')
    num_classification_train: int = _option(
        20_000, 10, 999_999, 'number of classification images for training'
    )
    num_classification_val: int = _option(
        1_000, 10, 999_999, 'number of classification images for validation'
    )
    scene_size: int = _option(88, 32, 2048, 'side length of scenes in pixels')
    num_scenes_train: int = _option(2_000, 1, 999_999, 'number of scenes for training')
    num_scenes_val: int = _option(200, 1, 999_999, 'number of scenes for validation')
    max_digits: int = _option(6, 1, 50, 'maximum number of digits per scene')
    min_digit_size: int = _option(26, 12, 2048, 'longer side of the smallest digits of scenes in pixels')
    max_digit_size: int = _option(48, 12, 2048, 'longer side of the largest digits of scenes in pixels')

    def __post_init__(self) -> None:
        for option in fields(self):
            value, low, high = getattr(self, option.name), option.metadata['low'], option.metadata['high']
            if not low <= value <= high:
                raise UserError(f'{option.name} {value}: must be from {low} to {high}')
        if not self.min_digit_size <= self.max_digit_size <= self.scene_size:
            raise UserError(
                f'min_digit_size {self.min_digit_size}, max_digit_size {self.max_digit_size}: must satisfy '
                f'min_digit_size <= max_digit_size <= scene_size, which is {self.scene_size}'
            )

    def num_classification(self, split: Split) -> int:
        return self.num_classification_train if split == 'train' else self.num_classification_val

    def num_scenes(self, split: Split) -> int:
        return self.num_scenes_train if split == 'train' else self.num_scenes_val


@dataclass(frozen=True)
class ClassificationImage:
    """One digit on a photograph: BGR image (S, S, 3), its class and its index in the sources."""

    image: NDArray[np.uint8]
    label: int
    digit: int


@dataclass(frozen=True)
class DigitInstance:
    """A digit of a scene: class, index in the sources, visible ink (S, S) and its fraction of all ink."""

    label: int
    digit: int
    mask: NDArray[np.bool_]
    visible: float


@dataclass(frozen=True)
class Scene:
    """Several digits on a photograph; later digits cover earlier ones.

    Attributes:
        image: BGR (S, S, 3) of uint8.
        label_map: (S, S) of uint8 with 1 for background and 2..11 for the digits 0..9.
        instances: The digits in drawing order.
    """

    image: NDArray[np.uint8]
    label_map: NDArray[np.uint8]
    instances: list[DigitInstance]


def render_classification(
    sources: DigitSources, options: DigitScenesOptions, split: Split, index: int
) -> ClassificationImage:
    """Render image `index` of a split; it cycles through the classes and the digits of each class."""
    rng, size = _image_rng(options.seed, split, _CLASSIFICATION, index), options.classification_size
    label = index % NUM_CLASSES
    candidates = sources.indices[split][label]
    digit = int(candidates[index // NUM_CLASSES % len(candidates)])
    canvas = crop_photograph(rng, sources.photographs, size)
    digit_size = min(rng.uniform(*CLASSIFICATION_DIGIT_FRACTION) * size, size - 2 * _GLYPH_MARGIN - 1)
    glyph = _draw_glyph(rng, sources.digits[digit], digit_size)
    # Search for a smooth background with increasing tolerance; the last limit accepts any.
    for limit in (35, 45, 60, 80, 128):
        region = _random_region(rng, glyph, size)
        background = _background(canvas[region], glyph)
        if background.std <= limit:
            break
    _composite(rng, canvas[region], glyph, _ink_color(rng, background))
    return ClassificationImage(_add_noise(rng, canvas), label, digit)


def render_scene(sources: DigitSources, options: DigitScenesOptions, split: Split, index: int) -> Scene:
    """Render scene `index` of a split."""
    rng, size = _image_rng(options.seed, split, _SCENE, index), options.scene_size
    canvas = crop_photograph(rng, sources.photographs, size)
    drawn: list[_DrawnDigit] = []
    for _ in range(rng.integers(1, options.max_digits + 1)):
        label = int(rng.integers(NUM_CLASSES))
        digit = int(rng.choice(sources.indices[split][label]))
        new = _place_digit(rng, sources.digits[digit], canvas, drawn, options)
        if new is None:
            continue
        glyph, region, mask = new
        neighbors = [other.color for other in drawn if _overlap(region, other.region) > 0]
        color = _distinct_ink_color(rng, _background(canvas[region], glyph), neighbors)
        _composite(rng, canvas[region], glyph, color)
        for other in drawn:
            other.mask &= ~mask
        drawn.append(_DrawnDigit(label, digit, color, region, mask, int(mask.sum())))

    label_map = np.full((size, size), BACKGROUND_LABEL, dtype=np.uint8)
    for item in drawn:
        label_map[item.mask] = FIRST_DIGIT_LABEL + item.label
    instances = [
        DigitInstance(item.label, item.digit, item.mask, float(item.mask.sum()) / item.ink) for item in drawn
    ]
    return Scene(_add_noise(rng, canvas), label_map, instances)


Region = tuple[slice, slice]


@dataclass(frozen=True)
class Background:
    """Mean and standard deviation of the luminance under a digit, of 255."""

    luminance: float
    std: float


@dataclass
class _DrawnDigit:
    label: int
    digit: int
    color: NDArray[np.float32]
    region: Region
    mask: NDArray[np.bool_]
    ink: int


def _image_rng(seed: int, split: Split, task: int, index: int) -> np.random.Generator:
    # One random stream per image, so that an image does not depend on the number of images.
    return np.random.default_rng([seed, SPLITS.index(split), task, index])


def _draw_glyph(rng: np.random.Generator, digit: NDArray[np.float32], size: float) -> NDArray[np.float32]:
    """Convert (8, 8) ink density into an opacity patch in 0..1 whose ink has the longer side `size`."""
    angle = np.deg2rad(rng.uniform(-15, 15))
    aspect, shear = np.exp(rng.uniform(-0.15, 0.15)), rng.uniform(-0.15, 0.15)
    # A lower threshold gives bolder strokes.
    threshold = rng.uniform(0.38, 0.5)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    linear = rotation @ np.array([[aspect, shear], [0.0, 1.0]])

    density = cv2.resize(
        np.pad(digit, 1), None, fx=_GLYPH_UPSAMPLING, fy=_GLYPH_UPSAMPLING, interpolation=cv2.INTER_CUBIC
    )
    rows, columns = np.nonzero(density > threshold)
    ink = linear @ np.stack([columns, rows])
    low, extent = ink.min(axis=1), np.ptp(ink, axis=1)
    scale = size / extent.max()
    matrix = np.column_stack([scale * linear, _GLYPH_MARGIN - scale * low])
    width, height = (int(side) for side in np.ceil(scale * extent) + 2 * _GLYPH_MARGIN)
    density = cv2.warpAffine(density, matrix, (width, height), flags=cv2.INTER_LINEAR)
    # Steeper at larger sizes, so that the edge of a stroke stays about two pixels wide.
    steepness = max(2.0, scale * _GLYPH_UPSAMPLING)
    opacity: NDArray[np.float32] = np.clip(0.5 + (density - threshold) * steepness, 0, 1).astype(np.float32)
    return opacity


def _random_region(rng: np.random.Generator, glyph: NDArray[np.float32], size: int) -> Region:
    height, width = glyph.shape
    top, left = int(rng.integers(size - height + 1)), int(rng.integers(size - width + 1))
    return slice(top, top + height), slice(left, left + width)


def _place_digit(
    rng: np.random.Generator,
    digit: NDArray[np.float32],
    canvas: NDArray[np.float32],
    drawn: list[_DrawnDigit],
    options: DigitScenesOptions,
) -> tuple[NDArray[np.float32], Region, NDArray[np.bool_]] | None:
    """Find a size and region that keep the other digits readable; None if the scene is too full."""
    size, smallest, largest = options.scene_size, options.min_digit_size, options.max_digit_size
    for attempt in range(30):
        digit_size = np.exp(rng.uniform(np.log(smallest), np.log(largest)))
        glyph = _draw_glyph(rng, digit, float(min(digit_size, size - 2 * _GLYPH_MARGIN - 1)))
        region = _random_region(rng, glyph, size)
        mask = np.zeros((size, size), dtype=np.bool_)
        mask[region] = glyph > 0.5
        readable = all((other.mask & ~mask).sum() >= (1 - MAX_HIDDEN) * other.ink for other in drawn)
        crowded = any(_overlap(region, other.region) > MAX_BOX_OVERLAP for other in drawn)
        # Prefer a smooth background; the last attempt accepts any (at most 127.5), so no scene is empty.
        if readable and not crowded and _background(canvas[region], glyph).std <= 41 + 3 * attempt:
            return glyph, region, mask
    return None


def _overlap(a: Region, b: Region) -> float:
    """Return the intersection of two boxes as a fraction of the smaller one."""
    intersection, area_a, area_b = 1, 1, 1
    for side_a, side_b in zip(a, b, strict=True):
        intersection *= max(0, min(side_a.stop, side_b.stop) - max(side_a.start, side_b.start))
        area_a *= side_a.stop - side_a.start
        area_b *= side_b.stop - side_b.start
    return intersection / min(area_a, area_b)


def _background(patch: NDArray[np.float32], glyph: NDArray[np.float32]) -> Background:
    """Measure the luminance under and close to the strokes of a glyph."""
    near = cv2.dilate(glyph, np.ones((5, 5), np.uint8)) > 0.5
    mean, deviation = cv2.meanStdDev(patch @ _BGR_TO_LUMINANCE, mask=near.astype(np.uint8))
    return Background(mean.item(), deviation.item())


def _distinct_ink_color(
    rng: np.random.Generator, background: Background, neighbors: list[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Draw a few ink colors and return the one that differs most from those of overlapping digits."""
    candidates = [_ink_color(rng, background) for _ in range(8 if neighbors else 1)]
    differences = [
        min((float(np.linalg.norm(color - other)) for other in neighbors), default=0.0)
        for color in candidates
    ]
    return candidates[int(np.argmax(differences))]


def _ink_color(rng: np.random.Generator, background: Background) -> NDArray[np.float32]:
    """Draw a BGR color, lighter than the background by MIN_CONTRAST or more, or darker on a bright one."""
    contrast = rng.uniform(MIN_CONTRAST, MAX_CONTRAST) + 0.5 * background.std
    lighter = background.luminance + MIN_CONTRAST <= 255
    luminance = np.clip(background.luminance + (contrast if lighter else -contrast), 0, 255)
    pure = rng.uniform(0, 255, size=3).astype(np.float32)
    chroma = pure - pure @ _BGR_TO_LUMINANCE
    # The largest saturation that this luminance allows, times a random factor.
    room = np.where(chroma > 0, 255 - luminance, luminance) / np.maximum(np.abs(chroma), 1e-6)
    saturation = rng.uniform(0.1, 1.0)
    color: NDArray[np.float32] = (luminance + chroma * room.min() * saturation).astype(np.float32)
    return color


def _composite(
    rng: np.random.Generator,
    patch: NDArray[np.float32],
    glyph: NDArray[np.float32],
    color: NDArray[np.float32],
) -> None:
    """Paint the glyph into the patch, in place."""
    alpha = (glyph * rng.uniform(0.88, 1.0))[..., None]
    patch += alpha * (color - patch)


def _add_noise(rng: np.random.Generator, canvas: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Add sensor noise to the complete image and convert it to 8 bits."""
    noise = rng.standard_normal((*canvas.shape[:2], 1), dtype=np.float32) * np.float32(rng.uniform(0, 7))
    return np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)
