"""Draw labels, boxes and masks over small images, enlarged first so that the text is readable."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

ZOOM = 3
# One colour a digit, far apart and readable under black or white text; RGB.
PALETTE: tuple[Colour, ...] = (
    (230, 25, 75),
    (60, 180, 75),
    (255, 225, 25),
    (67, 99, 216),
    (245, 130, 49),
    (145, 30, 180),
    (66, 212, 244),
    (240, 50, 230),
    (191, 239, 69),
    (0, 128, 128),
)
_BLACK: Colour = (0, 0, 0)
_WHITE: Colour = (255, 255, 255)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_BOX_FONT_SCALE = 0.55
# The maps are shown smaller than the boxes, and so need larger text.
_MAP_FONT_SCALE = 0.75
_MASK_OPACITY = 0.35
_MAP_OPACITY = 0.7
_JPEG_QUALITY = 90
# A region of fewer pixels than this is left without its digit, or noise would bury the map in text.
_MIN_LABELLED_REGION = 60


@dataclass(frozen=True)
class Instance:
    """A digit in a scene: class, box (x1, y1, x2, y2), mask (H, W), score unless it is ground truth."""

    label: int
    box: tuple[float, float, float, float]
    mask: NDArray[np.bool_]
    score: float | None = None


def encode_jpeg(image: Image) -> bytes:
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1].tobytes()


def enlarge(image: Image) -> Image:
    return np.asarray(cv2.resize(image, None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_CUBIC))


def draw_instances(image: Image, instances: Sequence[Instance]) -> Image:
    """Boxes, mask contours and labels on the enlarged image (BGR); the surest on top."""
    canvas = enlarge(image)
    ordered = sorted(instances, key=lambda instance: instance.score or 0.0)
    for instance in ordered:
        _draw_mask(canvas, instance.mask, _bgr(instance.label))
    for instance in ordered:
        x1, y1, x2, y2 = (round(ZOOM * value) for value in instance.box)
        cv2.rectangle(canvas, (x1, y1), (x2, y2), _bgr(instance.label), 2)
    for instance in ordered:
        text = str(instance.label) if instance.score is None else f'{instance.label} {instance.score:.2f}'
        x1, y1 = (round(ZOOM * value) for value in instance.box[:2])
        _draw_tag(canvas, text, x1, y1, instance.label, _BOX_FONT_SCALE)
    return canvas


def draw_label_map(image: Image, labels: NDArray[np.integer]) -> Image:
    """A map of 0 = background, 1..10 = digits 0..9 over the enlarged, dimmed image (BGR)."""
    grey = cv2.cvtColor(enlarge(image), cv2.COLOR_BGR2GRAY)
    canvas: Image = np.repeat((grey * 0.6).astype(np.uint8)[..., None], 3, axis=2)
    large = cv2.resize(labels.astype(np.uint8), None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_NEAREST)
    for label in range(len(PALETTE)):
        _blend(canvas, large == label + 1, _bgr(label), _MAP_OPACITY)
    for label in range(len(PALETTE)):
        _, _, stats, centers = cv2.connectedComponentsWithStats((labels == label + 1).astype(np.uint8))
        for (*_, area), center in zip(stats[1:], centers[1:], strict=True):
            if area >= _MIN_LABELLED_REGION:
                x, y = (round(ZOOM * value) for value in center)
                _draw_tag(canvas, str(label), x - 9, y + 12, label, _MAP_FONT_SCALE)
    return canvas


def css_colour(label: int) -> str:
    return '#{:02x}{:02x}{:02x}'.format(*PALETTE[label])


def _draw_mask(canvas: Image, mask: NDArray[np.bool_], colour: Colour) -> None:
    # Enlarged as a grey image, then cut at one half, the outline has no stairs.
    large = (
        cv2.resize(mask.astype(np.uint8) * 255, None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_CUBIC) > 127
    )
    _blend(canvas, large, colour, _MASK_OPACITY)
    contours, _ = cv2.findContours(large.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(canvas, contours, -1, colour, 1, cv2.LINE_AA)


def _draw_tag(canvas: Image, text: str, x: int, bottom: int, label: int, scale: float) -> None:
    """Text on a patch of the class's colour whose lower left corner is (x, bottom), kept in the image."""
    (width, height), baseline = cv2.getTextSize(text, _FONT, scale, 1)
    patch_width, patch_height = width + 4, height + baseline + 2
    x = min(max(x, 0), canvas.shape[1] - patch_width)
    bottom = min(max(bottom, patch_height), canvas.shape[0])
    cv2.rectangle(canvas, (x, bottom - patch_height), (x + patch_width, bottom), _bgr(label), cv2.FILLED)
    red, green, blue = PALETTE[label]
    ink = _BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else _WHITE
    cv2.putText(canvas, text, (x + 2, bottom - baseline), _FONT, scale, ink, 1, cv2.LINE_AA)


def _blend(canvas: Image, where: NDArray[np.bool_], colour: Colour, opacity: float) -> None:
    canvas[where] = (canvas[where] * (1 - opacity) + np.array(colour) * opacity).astype(np.uint8)


def _bgr(label: int) -> Colour:
    red, green, blue = PALETTE[label]
    return blue, green, red
