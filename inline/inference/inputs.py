"""What a user hands over: files, folders, arrays; and what a config's test pipeline makes of each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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

from inline.datasets.imagenet_layout import IMAGE_EXTENSIONS
from inline.datasets.reading import DEFAULT_MAX_PIXELS, LoadImage
from inline.engine.config import walk_dicts
from inline.errors import UserError

Image = NDArray[np.uint8]
ImageInput = str | Path | Image | PILImage.Image

EXTENSIONS = frozenset((*IMAGE_EXTENSIONS, '.tiff', '.webp'))
_LOADERS = ('LoadImageFromFile', 'LoadImage')
# There is no truth to load for an image of one's own.
_ANNOTATIONS = ('LoadAnnotations', 'LoadLabelMap', 'LoadPanopticAnnotations')


@dataclass(frozen=True)
class Source:
    """One image: a file, or an array in BGR (H, W, 3); `name` is a path without ending for what it gives."""

    name: str
    path: Path | None = None
    array: Image | None = None

    def describe(self) -> str:
        return str(self.path) if self.path is not None else self.name


def is_folder(given: object) -> bool:
    return isinstance(given, str | Path) and Path(given).is_dir()


def find_sources(given: ImageInput | Iterable[ImageInput], *, leave_out: Path | None = None) -> list[Source]:
    """The images in what was given; folders are searched to the bottom, but for the folder `leave_out`."""
    items: list[Any]
    if isinstance(given, str | Path | np.ndarray | PILImage.Image) or not isinstance(given, Iterable):
        items = [given]
    else:
        items = list(given)
    paths: list[Path | Image] = []
    for item in items:
        if isinstance(item, np.ndarray):
            paths.append(as_colour(item))
        elif isinstance(item, PILImage.Image):
            paths.append(_from_pillow(item))
        elif not isinstance(item, str | Path):
            raise UserError(
                f'{type(item).__name__} is no image: give a path, a folder, an array (H, W, 3) in BGR, '
                'an image of Pillow, or a list of them'
            )
        elif Path(item).is_dir():
            paths += _images_below(Path(item), leave_out)
        else:
            paths.append(Path(item))
    if not paths:
        raise UserError('there are no images: the list is empty')
    names = iter(unique_names([path for path in paths if isinstance(path, Path)]))
    return [
        Source(next(names), path=path) if isinstance(path, Path) else Source(f'array_{i}', array=path)
        for i, path in enumerate(paths)
    ]


def check_exist(sources: Sequence[Source]) -> None:
    """Refuse a list with a missing file before the first image is computed."""
    for source in sources:
        if source.path is not None and not source.path.is_file():
            raise UserError(f'image {str(source.path)!r} does not exist')


def unique_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: what differs of its folders, and the file's name without its ending.

    Files that differ in their ending alone keep it, as ``b_png``; a file that comes again is counted. Case
    makes no difference, so that the names stay apart on every file system.
    """
    whole = [path.resolve() for path in paths]
    parents = [path.parent.parts for path in whole]
    shared = 0
    while parents and all(len(parts) > shared and parts[shared] == parents[0][shared] for parts in parents):
        shared += 1
    inner = [Path(*path.parts[shared:]) for path in whole]
    counts = Counter(_stem(path).casefold() for path in inner)
    names, taken = [], set[str]()
    for path in inner:
        name = _stem(path)
        if counts[name.casefold()] > 1 and path.suffix:
            name = f'{name}_{path.suffix[1:]}'
        first, again = name, 2
        while name.casefold() in taken:
            name, again = f'{first}_{again}', again + 1
        taken.add(name.casefold())
        names.append(name)
    return names


def as_colour(array: NDArray[Any]) -> Image:
    """(H, W, 3) of an array that may be grey, (H, W) or (H, W, 1), or have opacity, (H, W, 4)."""
    if array.dtype != np.uint8:
        raise UserError(f'array of {array.dtype}: must be uint8, 0 to 255, in BGR as cv2.imread gives it')
    image = array[..., None] if array.ndim == 2 else array
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4) or 0 in image.shape:
        raise UserError(f'array of shape {array.shape}: must be (H, W, 3) in BGR, or (H, W) for grey')
    return np.repeat(image, 3, axis=2) if image.shape[-1] == 1 else np.ascontiguousarray(image[..., :3])


class Preparation:
    """The test pipeline of a config, its reading of files apart from the rest.

    Args:
        cfg: Names a pipeline in its ``test_dataloader``.
        full_size: Leave out what changes the size of an image.
    """

    def __init__(self, cfg: Config, full_size: bool = False) -> None:
        steps = [dict(step) for step in _test_pipeline(cfg) if _kind(step) not in _ANNOTATIONS]
        loaders = [step for step in steps if _kind(step) in _LOADERS]
        rest = [step for step in steps if _kind(step) not in _LOADERS]
        if full_size:
            rest = [step for step in rest if 'Resize' not in _kind(step)]
        options = {
            key: loaders[0][key]
            for key in ('color_type', 'imdecode_backend')
            if loaders and key in loaders[0]
        }
        self.to_float32 = bool(loaders and loaders[0].get('to_float32'))
        limit = (cfg.get('bad_data') or {}).get('max_pixels', DEFAULT_MAX_PIXELS)
        self._load = LoadImage(**options, max_pixels=limit)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            self._rest = Compose(rest)

    def read(self, source: Source) -> Image:
        """The image in BGR, (H, W, 3)."""
        if source.array is not None:
            return source.array
        results = self._load({'img_path': str(source.path)})
        image: Image = results['img']
        return image

    def __call__(self, source: Source, index: int) -> dict[str, Any]:
        """Inputs (3, H, W) and a data sample, as the toolbox's own data set would give them."""
        image = self.read(source)
        results = {
            'img': image.astype(np.float32) if self.to_float32 else image,
            'img_path': source.describe(),
            'img_id': index,
            'sample_idx': index,
            'img_shape': image.shape[:2],
            'ori_shape': image.shape[:2],
        }
        packed: dict[str, Any] = self._rest(results)
        return packed


def _from_pillow(image: PILImage.Image) -> Image:
    """In BGR, turned as its camera says, as a file is when it is read."""
    return np.ascontiguousarray(np.asarray(ImageOps.exif_transpose(image).convert('RGB'))[..., ::-1])


def _stem(path: Path) -> str:
    return path.with_suffix('').as_posix()


def _images_below(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    outside = leave_out.resolve() if leave_out is not None else None
    found = [
        path
        for path in sorted(folder.rglob('*'))
        if path.suffix.lower() in EXTENSIONS
        and not path.name.startswith('.')
        and path.is_file()
        and (outside is None or outside not in path.resolve().parents)
    ]
    if not found:
        raise UserError(f'folder {str(folder)!r} has no images: looked for {", ".join(sorted(EXTENSIONS))}')
    yield from found


def _test_pipeline(cfg: Config) -> list[dict[str, Any]]:
    for _, node in walk_dicts((cfg.get('test_dataloader') or {}).get('dataset')):
        if 'pipeline' in node:
            steps: list[dict[str, Any]] = node['pipeline']
            return steps
    raise UserError('the config’s test_dataloader has no pipeline: it says how an image is prepared')


def _kind(step: dict[str, Any]) -> str:
    return str(step.get('type')).rpartition('.')[2]
