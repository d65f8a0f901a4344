"""ADE20K, as in the scene parsing challenge of 2016: images and a label map for each."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from inline.datasets.prepare.images import (
    DecodeImage,
    Decoding,
    FolderFiles,
    inspect_all,
    open_image,
    reason,
)
from inline.datasets.prepare.report import Fault, Part

SOURCE = 'http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip'


@dataclass(frozen=True)
class Ade20kSpec:
    training: int = 20_210
    validation: int = 2_000
    # 0 is what is not labelled.
    max_label: int = 150


PUBLIC = Ade20kSpec()


@dataclass(frozen=True)
class InspectLabels:
    """A label map has one channel, the size of its image and no label beyond the classes."""

    images: FolderFiles
    labels: FolderFiles
    max_label: int

    def __call__(self, name: str) -> Fault | None:
        try:
            with open_image(self.labels.read(name)) as labels:
                size, bands = labels.size, labels.getbands()
                highest = int(np.asarray(labels).max()) if len(bands) == 1 else None
        except Exception as error:  # A damaged file can make a decoder raise anything.
            return Fault('label maps that cannot be decoded', name, reason(error))
        if highest is None:
            return Fault('label maps with several channels', name, ''.join(bands))
        if highest > self.max_label:
            return Fault(f'label maps with a value above {self.max_label}', name, str(highest))
        expected = self._size_of_image(name)
        if expected and size != expected:
            detail = '{}x{} for {}x{}'.format(*size, *expected)
            return Fault('label maps of another size than their image', name, detail)
        return None

    def _size_of_image(self, name: str) -> tuple[int, int] | None:
        """None for an image that is missing or broken, which is told of the images."""
        try:
            with Image.open(self.images.path / f'{Path(name).stem}.jpg') as image:
                return image.size
        except Exception:
            return None


def check(root: Path, decoding: Decoding | None, spec: Ade20kSpec = PUBLIC) -> list[Part]:
    parts = []
    for split, expected in (('training', spec.training), ('validation', spec.validation)):
        images, image_names = _find(root, f'images/{split}', '.jpg', 'images', expected)
        labels, label_names = _find(root, f'annotations/{split}', '.png', 'label maps', expected)
        image_stems, label_stems = ({Path(name).stem for name in n} for n in (image_names, label_names))
        if image_names and label_names:
            labels.add('images without a label map', (f'{stem}.jpg' for stem in image_stems - label_stems))
            images.add('label maps without an image', (f'{stem}.png' for stem in label_stems - image_stems))
        if decoding is not None:
            image_files, label_files = (FolderFiles(root / part.name) for part in (images, labels))
            images.add_faults(inspect_all(DecodeImage(image_files), image_names, decoding, images.name))
            inspect = InspectLabels(image_files, label_files, spec.max_label)
            labels.add_faults(inspect_all(inspect, label_names, decoding, labels.name))
        parts += [images, labels]
    return parts


def _find(root: Path, name: str, suffix: str, what: str, expected: int) -> tuple[Part, list[str]]:
    part, folder = Part(name, SOURCE), root / name
    if not folder.is_dir():
        part.problems.append(f'the folder is missing, {expected:,} {what} expected')
        return part, []
    names = sorted(path.name for path in folder.iterdir() if path.suffix == suffix)
    part.found = f'{len(names):,} {what}'
    part.expect(what, len(names), expected)
    return part, names
