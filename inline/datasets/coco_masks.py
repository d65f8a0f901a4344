"""Masks of COCO files, held to what pycocotools can draw: it crashes on others, or draws something else."""

import math
import reprlib
from typing import Any


def mask_fault(segmentation: Any, width: float, height: float) -> str | None:
    """What cannot be meant in the mask of an object, as the end of a sentence about it; None if nothing."""
    if isinstance(segmentation, dict):
        return _runs_fault(segmentation, width, height)
    if not isinstance(segmentation, list):
        return f'is {reprlib.repr(segmentation)}: must be polygons or runs'
    for points in segmentation:
        fault = _polygon_fault(points, width, height)
        if fault is not None:
            return fault
    return None


def is_whole_polygon(points: list[float]) -> bool:
    """Whether the toolbox keeps it: at least three points of two numbers."""
    return len(points) >= 6 and len(points) % 2 == 0


def unpack_runs(counts: str) -> list[int] | None:
    """Runs of COCO's packed form, 5 bits a character and from the fourth on differences; None if cut off."""
    runs: list[int] = []
    value = shift = 0
    for character in counts.encode():
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            # A run of more bits than any image has pixels would only take long.
            if shift > 60:
                return None
            continue
        if bits & 0x10:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return None if shift else runs


def _polygon_fault(points: Any, width: float, height: float) -> str | None:
    flat = f'has the polygon {reprlib.repr(points)}: must be a list of finite numbers'
    if not isinstance(points, list):
        return flat
    try:
        # One sum tells of words, lists and None by its error, of NaN and infinity by its value.
        if not math.isfinite(sum(points)):
            return flat
    except (TypeError, OverflowError):
        return flat
    # An object may reach beyond the border, by its whole image at most.
    for numbers, size in ((points[::2], width), (points[1::2], height)):
        if numbers and (min(numbers) < -size or max(numbers) > 2 * size):
            far = max(numbers, key=abs)
            return f'has a polygon with the number {far!r}, far outside its image of {width}x{height}'
    return None


def _runs_fault(mask: dict[str, Any], width: float, height: float) -> str | None:
    size, counts = mask.get('size'), mask.get('counts')
    if size != [height, width]:
        return f'has size {size}, and its image {[height, width]}'
    runs = unpack_runs(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(run) is int and run >= 0 for run in runs):
        return f'has runs of {reprlib.repr(counts)}: must be whole numbers, 0 or more, or their packed form'
    if sum(runs) != height * width:
        return f'has runs of {sum(runs)} pixels, and its image {height * width}'
    return None
