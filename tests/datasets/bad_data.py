"""What the rows of ``docs/bad_data.md`` are made of, and files to break."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)
# Smooth, so that a lossy format changes little; no two channels, rows or columns alike.
PICTURE = cv2.resize(RANDOM.integers(0, 256, (4, 5, 3), dtype=np.uint8), (40, 24))


@dataclass(frozen=True)
class Row:
    """A row of the table: what happens, the words by which it is told, and how a test brings it about."""

    outcome: str
    told: str
    make: Callable[..., Any]


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(mode: str = 'RGB') -> Image.Image:
    return Image.fromarray(PICTURE).convert(mode)


def table_rows(page: Path) -> dict[str, tuple[str, str]]:
    """First, second and third column of all tables of a page with a header «what | outcome | told»."""
    rows = {}
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip('|').split(' | ')]
        if line.startswith('| ') and len(cells) == 3 and cells[0] != 'what':
            assert cells[0] not in rows, f'{cells[0]!r} stands twice'
            rows[cells[0]] = (cells[1], cells[2])
    return rows
