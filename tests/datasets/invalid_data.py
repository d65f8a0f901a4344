"""Test cases that are also the rows of ``docs/data_validation.md``, and images to damage."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
# Smooth, so that lossy formats change little; all channels, rows and columns differ.
PICTURE = cv2.resize(RANDOM.integers(0, 256, (4, 5, 3), dtype=np.uint8), (40, 24))


@dataclass(frozen=True)
class Case:
    """A table row: the outcome, a part of the message (or a remark), and a function that makes the data."""

    outcome: str
    message: str
    make: Callable[..., Any]


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def picture(mode: str = 'RGB') -> Image.Image:
    return Image.fromarray(PICTURE).convert(mode)


def table_rows(page: Path) -> dict[str, tuple[str, str]]:
    """Return the rows of all tables of a page with the columns data, outcome and message."""
    rows = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip('|').split(' | ')]
        if line.startswith('| ') and len(cells) == 3 and cells[0] != 'data':
            assert cells[0] not in rows, f'{cells[0]!r} occurs twice'
            rows[cells[0]] = (cells[1], cells[2])
    return rows
