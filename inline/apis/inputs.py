"""Input images: files, folders, URLs, videos, arrays and tensors, and the config's test pipeline for them."""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DefaultScope
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageOps
from torch import Tensor

from inline.apis.media import VIDEO_EXTENSIONS, check_url, download_image, is_url, is_video, read_frames
from inline.datasets.image_file import IMAGE_EXTENSIONS
from inline.datasets.loading import DEFAULT_MAX_PIXELS, LoadImage
from inline.utils.arguments import check_choice
from inline.utils.drawing import Image
from inline.utils.errors import UserError
from inline.utils.nested import leaf_datasets

EXTENSIONS = frozenset(IMAGE_EXTENSIONS)
_BYTES = (bytes, bytearray, memoryview)
# Types that are iterable but are one image, or one batch.
_SINGLE = (str, np.ndarray, Tensor, *_BYTES)
CHANNEL_ORDERS = ('bgr', 'rgb')
_MEDIA = EXTENSIONS | VIDEO_EXTENSIONS
_LOADERS = ('LoadImageFromFile', 'LoadImage')
# Skipped: input images have no annotations.
_ANNOTATION_LOADERS = ('LoadAnnotations', 'LoadLabelMap', 'LoadPanopticAnnotations')


@dataclass(frozen=True)
class ImageSource:
    """An input image: a file, an array, an encoded image, a URL or a video. Exactly one of these is not None.

    Attributes:
        name: Unique within a call. A relative path without suffix, from which output files are named.
        path: An image file, or a video.
        array: BGR (H, W, 3).
        content: An encoded image, such as the bytes of a JPEG file.
        url: The image at this address; together with `content` after it was downloaded.
        frame: Number of a frame from 0. `array` is the frame and `path` the video.
    """

    name: str
    path: Path | None = None
    array: Image | None = None
    content: bytes | None = field(default=None, repr=False)
    url: str | None = None
    frame: int | None = None

    @property
    def is_video(self) -> bool:
        """Whether this is a whole video, not one of its frames."""
        return self.path is not None and self.frame is None and is_video(self.path)

    @property
    def location(self) -> str:
        """The file or the URL; the name for images in memory."""
        return self.url or (str(self.path) if self.path is not None else self.name)

    def describe(self) -> str:
        return self.location if self.frame is None else f'{self.location}, frame {self.frame}'


ImageInput = str | Path | Image | PILImage.Image | bytes | Tensor | ImageSource


def find_images(
    images: ImageInput | Iterable[ImageInput],
    *,
    channel_order: str | None = None,
    exclude: Path | None = None,
) -> list[ImageSource]:
    """List the images of an input.

    Args:
        images: Paths, folders (searched recursively), glob patterns, URLs, videos, arrays, tensors, Pillow
            images, encoded images as bytes.
        channel_order: ``'bgr'`` or ``'rgb'``, the order of the channels of arrays and tensors. By default,
            arrays are BGR as OpenCV reads them, and tensors are RGB as torchvision reads them.
        exclude: A folder whose images are not used.
    """
    if channel_order is not None:
        check_choice('channel_order', channel_order, CHANNEL_ORDERS)
    is_single = isinstance(images, _SINGLE) or not isinstance(images, Iterable)
    items: list[Any] = [images] if is_single else list(images)  # type: ignore[arg-type]
    if items and all(isinstance(item, ImageSource) for item in items):
        return items
    found: list[ImageSource] = []
    for item in items:
        if isinstance(item, str | Path):
            found += _find_files(item, exclude)
        elif isinstance(item, _BYTES):
            found.append(ImageSource(f'image_{len(found)}', content=bytes(item)))
        else:
            arrays = _to_arrays(item, channel_order)
            found += [ImageSource(f'array_{len(found) + i}', array=array) for i, array in enumerate(arrays)]
    if not found:
        raise UserError('there are no images: the list is empty')
    names = iter(unique_names([source.path for source in found if source.path is not None]))
    preferred = [next(names) if source.path is not None else source.name for source in found]
    return [
        replace(source, name=name) for source, name in zip(found, _number_repeated(preferred), strict=True)
    ]


def is_collection(images: object) -> bool:
    """Return whether an input is a folder or a glob pattern."""
    return isinstance(images, str | Path) and (Path(images).is_dir() or _is_pattern(images))


def check_files_exist(sources: Sequence[ImageSource]) -> None:
    """Raise for a missing file before the first image is computed."""
    for source in sources:
        if source.path is not None and not source.path.is_file():
            raise UserError(f'image {str(source.path)!r} does not exist')


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a unique name for each path: the path below the common folder, without suffix.

    Files that differ only in their suffix keep it, as in ``b_png``. Repeated names get a number. Names are
    compared case-insensitively, because some file systems ignore case. Videos keep their suffix: the name is
    the folder of the frames, and no folder of images can have it.
    """
    if not paths:
        return []
    resolved = [path.resolve() for path in paths]
    common = os.path.commonpath([path.parent for path in resolved])
    relative = [path.relative_to(common) for path in resolved]
    counts = Counter(_without_suffix(path).casefold() for path in relative)
    names = []
    for path in relative:
        name = _without_suffix(path)
        if counts[name.casefold()] > 1 and path.suffix:
            name = f'{name}_{path.suffix[1:]}'
        names.append(name)
    return _number_repeated(names)


def to_bgr(array: NDArray[Any], channel_order: str = 'bgr') -> Image:
    """Convert an array to BGR (H, W, 3).

    Grey (H, W) or (H, W, 1) is repeated, and an alpha channel is dropped.
    """
    if array.dtype != np.uint8:
        raise UserError(f'array of {array.dtype}: must be uint8, 0 to 255, in BGR as cv2.imread returns it')
    image = array[..., None] if array.ndim == 2 else array
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4) or 0 in image.shape:
        raise UserError(
            f'array of shape {array.shape}: must be (H, W, 3) in BGR, or (H, W) for grey; '
            "channel_order='rgb' for RGB"
        )
    if image.shape[-1] == 1:
        return np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image[..., :3] if channel_order == 'bgr' else image[..., 2::-1])


def tensor_to_bgr(tensor: Tensor, channel_order: str = 'rgb') -> list[Image]:
    """Convert a tensor (C, H, W) or (N, C, H, W), uint8 or float from 0 to 1, to BGR images (H, W, 3)."""
    shape = tuple(tensor.shape)
    batch = tensor.detach().cpu()
    batch = batch[None] if batch.ndim == 3 else batch
    if batch.ndim != 4 or batch.shape[1] not in (1, 3, 4) or 0 in shape:
        raise UserError(f'tensor of shape {shape}: must be (3, H, W) or (N, 3, H, W), or 1 channel for grey')
    if batch.is_floating_point():
        low, high = float(batch.min()), float(batch.max())
        # False for NaN.
        if not (low >= 0 and high <= 1):
            raise UserError(
                f'float tensor with values from {low:g} to {high:g}: must be from 0 to 1, not normalised'
            )
        batch = (batch.double() * 255).round().to(torch.uint8)
    elif batch.dtype != torch.uint8:
        raise UserError(f'tensor of {batch.dtype}: must be uint8, or float from 0 to 1')
    return [to_bgr(image, channel_order) for image in batch.permute(0, 2, 3, 1).numpy()]


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

    def expand(self, source: ImageSource) -> Iterator[ImageSource]:
        """Yield the frames of a video one by one, the downloaded image of a URL, or the source itself."""
        if source.is_video:
            assert source.path is not None
            for i, frame in enumerate(read_frames(source.path, self._load.max_pixels)):
                yield replace(source, name=f'{source.name}/frame_{i:06d}', array=frame, frame=i)
        elif source.url is not None and source.content is None:
            yield replace(source, content=download_image(source.url))
        else:
            yield source

    def read(self, source: ImageSource) -> Image:
        """Return the image, BGR (H, W, 3)."""
        if source.array is not None:
            return source.array
        if source.content is not None:
            return self._load.decode(source.content, source.location)
        results = self._load({'img_path': str(source.path)})
        image: Image = results['img']
        return image

    def __call__(self, source: ImageSource, index: int = 0) -> dict[str, Any]:
        """Return inputs (3, H, W) and a data sample, as the toolbox's dataset does."""
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
    return (path if is_video(path) else path.with_suffix('')).as_posix()


def _number_repeated(names: Iterable[str]) -> list[str]:
    """Append a number to names that were used before."""
    numbered, used = [], set[str]()
    for base in names:
        name, number = base, 2
        while name.casefold() in used:
            name, number = f'{base}_{number}', number + 1
        used.add(name.casefold())
        numbered.append(name)
    return numbered


def _to_arrays(item: object, channel_order: str | None) -> list[Image]:
    """Convert an array, a tensor or a Pillow image to arrays, BGR (H, W, 3)."""
    if isinstance(item, np.ndarray):
        return [to_bgr(item, channel_order or 'bgr')]
    if isinstance(item, Tensor):
        return tensor_to_bgr(item, channel_order or 'rgb')
    if isinstance(item, PILImage.Image):
        # Applies the EXIF orientation, as reading the file does.
        return [to_bgr(np.asarray(ImageOps.exif_transpose(item).convert('RGB')), 'rgb')]
    raise UserError(
        f'{type(item).__name__} is not an image: give a path, a folder, a pattern such as *.jpg, a URL, '
        'an array (H, W, 3), a tensor (3, H, W), a Pillow image, bytes, or a list of them'
    )


def _find_files(item: str | Path, exclude: Path | None) -> list[ImageSource]:
    """Return the files of a path, a folder or a glob pattern, or the image of a URL."""
    if isinstance(item, str) and is_url(item):
        check_url(item)
        stem = Path(unquote(urlsplit(item).path)).stem
        # The name becomes that of output files: it must not contain separators.
        return [ImageSource(re.sub(r'[^\w.-]+', '_', stem).strip('._') or 'image', url=item)]
    if Path(item).is_dir():
        paths, suffixes = sorted(Path(item).rglob('*')), EXTENSIONS
        hint = f'folder {str(item)!r} contains no images: the suffixes are {", ".join(sorted(EXTENSIONS))}'
    elif _is_pattern(item):
        paths, suffixes = [Path(path) for path in sorted(glob.glob(str(item), recursive=True))], _MEDIA
        hint = f'no image or video matches the pattern {str(item)!r}'
    else:
        return [ImageSource('', path=Path(item))]
    excluded = exclude.resolve() if exclude is not None else None
    found = [
        ImageSource('', path=path)
        for path in paths
        if path.suffix.lower() in suffixes
        and not path.name.startswith('.')
        and path.is_file()
        and excluded not in path.resolve().parents
    ]
    if not found:
        raise UserError(hint)
    return found


def _is_pattern(item: str | Path) -> bool:
    # File names may contain brackets.
    return glob.has_magic(str(item)) and not is_url(str(item)) and not Path(item).exists()


def _test_pipeline(cfg: Config) -> list[dict[str, Any]]:
    dataset = next(leaf_datasets((cfg.get('test_dataloader') or {}).get('dataset')), {})
    if 'pipeline' not in dataset:
        raise UserError('the config has no pipeline in its test_dataloader, which inference needs')
    steps: list[dict[str, Any]] = dataset['pipeline']
    return steps


def _type_name(step: dict[str, Any]) -> str:
    """Return the class name of a transform, without its registry scope."""
    return str(step.get('type')).rpartition('.')[2]
