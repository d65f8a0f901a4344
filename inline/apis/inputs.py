"""Input images: files, folders, arrays and Pillow images, and the config's test pipeline for them."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageOps
from torch import Tensor

from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.datasets.loading import DEFAULT_MAX_PIXELS, LoadImage
from inline.utils.drawing import Image
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets

EXTENSIONS = frozenset(IMAGE_EXTENSIONS)
_LOADERS = ('LoadImageFromFile', 'LoadImage')
# Skipped: input images have no annotations.
_ANNOTATION_LOADERS = ('LoadAnnotations', 'LoadLabelMap', 'LoadPanopticAnnotations')


@dataclass(frozen=True)
class ImageSource:
    """An input image: a file, or an array.

    Attributes:
        name: Unique within a call. A relative path without suffix, from which output files are named.
        path: The file; None for an array.
        array: BGR (H, W, 3); None for a file.
    """

    name: str
    path: Path | None = None
    array: Image | None = None

    def describe(self) -> str:
        return str(self.path) if self.path is not None else self.name


ImageInput = str | Path | Image | PILImage.Image | ImageSource


def find_images(
    images: ImageInput | Iterable[ImageInput], *, exclude: Path | None = None
) -> list[ImageSource]:
    """List the images of an input. Searches folders recursively, except for the folder `exclude`."""
    is_single = isinstance(images, str | np.ndarray) or not isinstance(images, Iterable)
    items: list[Any] = [images] if is_single else list(images)  # type: ignore[arg-type]
    if items and all(isinstance(item, ImageSource) for item in items):
        return items
    found: list[Path | Image] = []
    for item in items:
        if isinstance(item, np.ndarray):
            found.append(to_bgr(item))
        elif isinstance(item, PILImage.Image):
            # Applies the EXIF orientation, as reading the file does.
            found.append(to_bgr(np.asarray(ImageOps.exif_transpose(item).convert('RGB'))[..., ::-1]))
        elif not isinstance(item, str | Path):
            raise UserError(
                f'{type(item).__name__} is not an image: give a path, a folder, an array (H, W, 3) in BGR, '
                'a Pillow image, or a list of them'
            )
        elif Path(item).is_dir():
            found += _images_in_folder(Path(item), exclude)
        else:
            found.append(Path(item))
    if not found:
        raise UserError('there are no images: the list is empty')
    names = iter(unique_names([path for path in found if isinstance(path, Path)]))
    return [
        ImageSource(next(names), path=item)
        if isinstance(item, Path)
        else ImageSource(f'array_{i}', array=item)
        for i, item in enumerate(found)
    ]


def check_files_exist(sources: Sequence[ImageSource]) -> None:
    """Raise for a missing file before the first image is computed."""
    for source in sources:
        if source.path is not None and not source.path.is_file():
            raise UserError(f'image {str(source.path)!r} does not exist')


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a unique name for each path: the path below the common folder, without suffix.

    Files that differ only in their suffix keep it, as in ``b_png``. Repeated names get a number. Names are
    compared without case, for file systems that ignore it.
    """
    if not paths:
        return []
    resolved = [path.resolve() for path in paths]
    common = os.path.commonpath([path.parent for path in resolved])
    relative = [path.relative_to(common) for path in resolved]
    counts = Counter(_without_suffix(path).casefold() for path in relative)
    names, used = [], set[str]()
    for path in relative:
        name = _without_suffix(path)
        if counts[name.casefold()] > 1 and path.suffix:
            name = f'{name}_{path.suffix[1:]}'
        base, number = name, 2
        while name.casefold() in used:
            name, number = f'{base}_{number}', number + 1
        used.add(name.casefold())
        names.append(name)
    return names


def to_bgr(array: NDArray[Any]) -> Image:
    """Convert an array to (H, W, 3): grey (H, W) or (H, W, 1) is repeated, an alpha channel is dropped."""
    if array.dtype != np.uint8:
        raise UserError(f'array of {array.dtype}: must be uint8, 0 to 255, in BGR as cv2.imread returns it')
    image = array[..., None] if array.ndim == 2 else array
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4) or 0 in image.shape:
        raise UserError(f'array of shape {array.shape}: must be (H, W, 3) in BGR, or (H, W) for grey')
    return np.repeat(image, 3, axis=2) if image.shape[-1] == 1 else np.ascontiguousarray(image[..., :3])


class InferencePipeline:
    """The test pipeline of a config, for images of any source.

    Args:
        cfg: Config with a pipeline in its ``test_dataloader``.
        full_size: Skip the steps that resize the image.
    """

    def __init__(self, cfg: Config, full_size: bool = False) -> None:
        steps = [dict(step) for step in _test_pipeline(cfg)]
        loader = next((step for step in steps if _type_name(step) in _LOADERS), {})
        transforms = [step for step in steps if _type_name(step) not in _LOADERS + _ANNOTATION_LOADERS]
        if full_size:
            transforms = [step for step in transforms if 'Resize' not in _type_name(step)]
        options = {key: loader[key] for key in ('color_type', 'imdecode_backend') if key in loader}
        self.to_float32 = bool(loader.get('to_float32'))
        max_pixels = (cfg.get('data_validation') or {}).get('max_pixels', DEFAULT_MAX_PIXELS)
        self._load = LoadImage(**options, max_pixels=max_pixels)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            self._transforms = Compose(transforms)

    def read(self, source: ImageSource) -> Image:
        """Return the image, BGR (H, W, 3)."""
        if source.array is not None:
            return source.array
        results = self._load({'img_path': str(source.path)})
        image: Image = results['img']
        return image

    def __call__(self, source: ImageSource, index: int = 0) -> dict[str, Any]:
        """Return inputs (3, H, W) and a data sample, as the toolbox's data set does."""
        image = self.read(source)
        results = {
            'img': image.astype(np.float32) if self.to_float32 else image,
            'img_path': source.describe(),
            'img_id': index,
            'sample_idx': index,
            'img_shape': image.shape[:2],
            'ori_shape': image.shape[:2],
        }
        packed: dict[str, Any] = self._transforms(results)
        return packed


def to_rgb_image(inputs: Tensor) -> Image:
    """Convert the BGR inputs (3, H, W) that a pipeline returns to an RGB image (H, W, 3)."""
    return np.ascontiguousarray(inputs.flip(0).permute(1, 2, 0).numpy().astype(np.uint8))


def _without_suffix(path: Path) -> str:
    return path.with_suffix('').as_posix()


def _images_in_folder(folder: Path, exclude: Path | None) -> list[Path]:
    excluded = exclude.resolve() if exclude is not None else None
    found = [
        path
        for path in sorted(folder.rglob('*'))
        if path.suffix.lower() in EXTENSIONS
        and not path.name.startswith('.')
        and path.is_file()
        and excluded not in path.resolve().parents
    ]
    if not found:
        raise UserError(
            f'folder {str(folder)!r} contains no images: the suffixes are {", ".join(sorted(EXTENSIONS))}'
        )
    return found


def _test_pipeline(cfg: Config) -> list[dict[str, Any]]:
    dataset = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), {})
    if 'pipeline' not in dataset:
        raise UserError('the config has no pipeline in its test_dataloader, which inference needs')
    steps: list[dict[str, Any]] = dataset['pipeline']
    return steps


def _type_name(step: dict[str, Any]) -> str:
    """Return the class name of a transform, without its registry scope."""
    return str(step.get('type')).rpartition('.')[2]
