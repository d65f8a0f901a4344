"""Draw handwritten digits on photographs: one for classification, several for a scene."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from inline.datasets.digit_sources import NUM_CLASSES, SPLITS, DigitSources, Split, crop_photograph

# Label maps: 0 is ADE20K's "unlabelled" (never used here), then background, then the digits.
BACKGROUND_LABEL = 1
FIRST_DIGIT_LABEL = 2

# No digit is covered by later ones by more than this share of its ink.
MAX_HIDDEN = 0.3
# Nor do the boxes of two digits share more than this of the smaller one.
MAX_BOX_OVERLAP = 0.25
# The least and greatest difference in luminance (of 255) between ink and the mean of what lies around it;
# on rough ground it is larger.
MIN_CONTRAST = 80.0
MAX_CONTRAST = 160.0

# Longer side of the digit of a classification image, as a share of the image's side.
CLASSIFICATION_DIGIT_SHARE = (0.5, 0.95)

_BGR_TO_LUMINANCE = np.array([0.114, 0.587, 0.299], dtype=np.float32)
_GLYPH_UPSAMPLING = 6
_GLYPH_MARGIN = 2
_CLASSIFICATION, _SCENE = 0, 1


@dataclass(frozen=True)
class ClassificationImage:
    """One digit on a photograph. image: (S, S, 3) BGR uint8; digit: index into the sources' digits."""

    image: NDArray[np.uint8]
    label: int
    digit: int


@dataclass(frozen=True)
class DigitInstance:
    """A digit of a scene. mask: (S, S) bool, the visible ink; visible: its share of all ink, 0..1."""

    label: int
    digit: int
    mask: NDArray[np.bool_]
    visible: float


@dataclass(frozen=True)
class Scene:
    """Several digits on a photograph, the later ones drawn over the earlier ones.

    image: (S, S, 3) BGR uint8. label_map: (S, S) uint8, 1 = background, 2..11 = digits 0..9.
    """

    image: NDArray[np.uint8]
    label_map: NDArray[np.uint8]
    instances: list[DigitInstance]


def render_classification(
    sources: DigitSources, *, seed: int, split: Split, index: int, size: int
) -> ClassificationImage:
    """Draw image `index` of a split; classes take turns, and so do the digits of a class."""
    rng = _image_rng(seed, split, _CLASSIFICATION, index)
    label = index % NUM_CLASSES
    candidates = sources.digits_of[split][label]
    digit = int(candidates[index // NUM_CLASSES % len(candidates)])
    canvas = crop_photograph(rng, sources.photographs, size)
    digit_size = min(rng.uniform(*CLASSIFICATION_DIGIT_SHARE) * size, size - 2 * _GLYPH_MARGIN - 1)
    glyph = _draw_glyph(rng, sources.digits[digit], digit_size)
    # Look for calm ground to write on, less and less choosy; the last limit lets any ground pass.
    for limit in (35, 45, 60, 80, 128):
        place = _random_place(rng, glyph, size)
        ground = _ground(canvas[place], glyph)
        if ground.roughness <= limit:
            break
    _composite(rng, canvas[place], glyph, _ink_colour(rng, ground))
    return ClassificationImage(_finish(rng, canvas), label, digit)


def render_scene(
    sources: DigitSources,
    *,
    seed: int,
    split: Split,
    index: int,
    size: int,
    max_digits: int,
    digit_sizes: tuple[int, int],
) -> Scene:
    """Draw scene `index` of a split, with 1 to max_digits digits whose longer side is in digit_sizes."""
    rng = _image_rng(seed, split, _SCENE, index)
    canvas = crop_photograph(rng, sources.photographs, size)
    drawn: list[_DrawnDigit] = []
    for _ in range(rng.integers(1, max_digits + 1)):
        label = int(rng.integers(NUM_CLASSES))
        digit = int(rng.choice(sources.digits_of[split][label]))
        new = _place_in_scene(rng, sources.digits[digit], canvas, drawn, digit_sizes)
        if new is None:
            continue
        glyph, place, mask = new
        neighbours = [other.colour for other in drawn if _overlap_share(place, other.place) > 0]
        colour = _distinct_ink_colour(rng, _ground(canvas[place], glyph), neighbours)
        _composite(rng, canvas[place], glyph, colour)
        for other in drawn:
            other.mask &= ~mask
        drawn.append(_DrawnDigit(label, digit, colour, place, mask, int(mask.sum())))

    label_map = np.full((size, size), BACKGROUND_LABEL, dtype=np.uint8)
    for item in drawn:
        label_map[item.mask] = FIRST_DIGIT_LABEL + item.label
    instances = [
        DigitInstance(item.label, item.digit, item.mask, float(item.mask.sum()) / item.ink) for item in drawn
    ]
    return Scene(_finish(rng, canvas), label_map, instances)


Place = tuple[slice, slice]


@dataclass(frozen=True)
class Ground:
    """Mean and standard deviation of the luminance that a digit is drawn on, of 255."""

    luminance: float
    roughness: float


@dataclass
class _DrawnDigit:
    label: int
    digit: int
    colour: NDArray[np.float32]
    place: Place
    mask: NDArray[np.bool_]
    ink: int


def _image_rng(seed: int, split: Split, kind: int, index: int) -> np.random.Generator:
    # Every image has a stream of its own, so a change of counts leaves the other images as they were.
    return np.random.default_rng([seed, SPLITS.index(split), kind, index])


def _draw_glyph(rng: np.random.Generator, digit: NDArray[np.float32], size: float) -> NDArray[np.float32]:
    """Turn (8, 8) ink density into an opacity patch in 0..1 whose ink box has the longer side `size`."""
    angle = np.deg2rad(rng.uniform(-15, 15))
    aspect, shear = np.exp(rng.uniform(-0.15, 0.15)), rng.uniform(-0.15, 0.15)
    # The lower the threshold on density, the bolder the stroke.
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
    # The steeper ramp at larger sizes keeps the edge of a stroke about two pixels wide.
    steepness = max(2.0, scale * _GLYPH_UPSAMPLING)
    opacity: NDArray[np.float32] = np.clip(0.5 + (density - threshold) * steepness, 0, 1).astype(np.float32)
    return opacity


def _random_place(rng: np.random.Generator, glyph: NDArray[np.float32], size: int) -> Place:
    height, width = glyph.shape
    top, left = int(rng.integers(size - height + 1)), int(rng.integers(size - width + 1))
    return slice(top, top + height), slice(left, left + width)


def _place_in_scene(
    rng: np.random.Generator,
    digit: NDArray[np.float32],
    canvas: NDArray[np.float32],
    drawn: list[_DrawnDigit],
    digit_sizes: tuple[int, int],
) -> tuple[NDArray[np.float32], Place, NDArray[np.bool_]] | None:
    """Find a size and place that leave the digits below readable; None if the scene is too full."""
    size = canvas.shape[0]
    smallest, largest = digit_sizes
    for attempt in range(30):
        digit_size = np.exp(rng.uniform(np.log(smallest), np.log(largest)))
        glyph = _draw_glyph(rng, digit, float(min(digit_size, size - 2 * _GLYPH_MARGIN - 1)))
        place = _random_place(rng, glyph, size)
        mask = np.zeros((size, size), dtype=np.bool_)
        mask[place] = glyph > 0.5
        readable = all((other.mask & ~mask).sum() >= (1 - MAX_HIDDEN) * other.ink for other in drawn)
        crowded = any(_overlap_share(place, other.place) > MAX_BOX_OVERLAP for other in drawn)
        # Calm ground first; the last attempt takes any (127.5 is the most), so no scene stays empty.
        if readable and not crowded and _ground(canvas[place], glyph).roughness <= 41 + 3 * attempt:
            return glyph, place, mask
    return None


def _overlap_share(a: Place, b: Place) -> float:
    """The boxes' intersection as a share of the smaller box."""
    intersection, area_a, area_b = 1, 1, 1
    for side_a, side_b in zip(a, b, strict=True):
        intersection *= max(0, min(side_a.stop, side_b.stop) - max(side_a.start, side_b.start))
        area_a *= side_a.stop - side_a.start
        area_b *= side_b.stop - side_b.start
    return intersection / min(area_a, area_b)


def _ground(patch: NDArray[np.float32], glyph: NDArray[np.float32]) -> Ground:
    """What lies under a glyph and just around its strokes."""
    near = cv2.dilate(glyph, np.ones((5, 5), np.uint8)) > 0.5
    mean, deviation = cv2.meanStdDev(patch @ _BGR_TO_LUMINANCE, mask=near.astype(np.uint8))
    return Ground(mean.item(), deviation.item())


def _distinct_ink_colour(
    rng: np.random.Generator, ground: Ground, neighbours: list[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Of a few ink colours the one that differs most from the digits it may touch."""
    candidates = [_ink_colour(rng, ground) for _ in range(8 if neighbours else 1)]
    differences = [
        min((float(np.linalg.norm(colour - other)) for other in neighbours), default=0.0)
        for colour in candidates
    ]
    return candidates[int(np.argmax(differences))]


def _ink_colour(rng: np.random.Generator, ground: Ground) -> NDArray[np.float32]:
    """A random BGR colour, lighter than the ground by at least MIN_CONTRAST, or darker where it is bright."""
    contrast = rng.uniform(MIN_CONTRAST, MAX_CONTRAST) + 0.5 * ground.roughness
    lighter = ground.luminance + MIN_CONTRAST <= 255
    luminance = np.clip(ground.luminance + (contrast if lighter else -contrast), 0, 255)
    pure = rng.uniform(0, 255, size=3).astype(np.float32)
    chroma = pure - pure @ _BGR_TO_LUMINANCE
    # Go as far from gray as the range of colours allows at this luminance, times a random saturation.
    room = np.where(chroma > 0, 255 - luminance, luminance) / np.maximum(np.abs(chroma), 1e-6)
    saturation = rng.uniform(0.1, 1.0)
    colour: NDArray[np.float32] = (luminance + chroma * room.min() * saturation).astype(np.float32)
    return colour


def _composite(
    rng: np.random.Generator,
    patch: NDArray[np.float32],
    glyph: NDArray[np.float32],
    colour: NDArray[np.float32],
) -> None:
    """Paint the glyph into the patch, in place."""
    alpha = (glyph * rng.uniform(0.88, 1.0))[..., None]
    patch += alpha * (colour - patch)


def _finish(rng: np.random.Generator, canvas: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Sensor noise over ink and photograph alike, then 8 bits."""
    noise = rng.standard_normal((*canvas.shape[:2], 1), dtype=np.float32) * np.float32(rng.uniform(0, 7))
    return np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)
