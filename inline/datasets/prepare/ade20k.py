"""ADE20K of the 2016 scene parsing challenge: images and one label map per image."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inline.datasets.image_file import failure_reason, open_image, read_file
from inline.datasets.prepare.inspection import (
    Decoding,
    FileProblem,
    Inspect,
    PathReport,
    folder_reader,
    image_decoder,
    inspect_all,
    list_folder,
)

SOURCE = 'http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip'


@dataclass(frozen=True)
class Ade20kSpec:
    """Expected counts. Label 0 means unlabelled."""

    training: int = 20_210
    validation: int = 2_000
    max_label: int = 150


PUBLIC = Ade20kSpec()


def check(root: Path, decoding: Decoding | None, spec: Ade20kSpec = PUBLIC) -> list[PathReport]:
    """Check a copy of the dataset; `decoding` is None to not open images."""
    reports = []
    for split, expected in (('training', spec.training), ('validation', spec.validation)):
        images, image_names = list_folder(root, f'images/{split}', '.jpg', 'images', expected, SOURCE)
        labels, label_names = list_folder(
            root, f'annotations/{split}', '.png', 'label maps', expected, SOURCE
        )
        if image_names and label_names:
            image_stems = {Path(name).stem for name in image_names}
            label_stems = {Path(name).stem for name in label_names}
            labels.add('images without a label map', (f'{stem}.jpg' for stem in image_stems - label_stems))
            images.add('label maps without an image', (f'{stem}.png' for stem in label_stems - image_stems))
        if decoding is not None:
            decode = image_decoder(folder_reader(root / images.name))
            images.add_file_problems(inspect_all(decode, image_names, decoding, images.name))
            inspect = _label_map_inspector(root / images.name, root / labels.name, spec.max_label)
            labels.add_file_problems(inspect_all(inspect, label_names, decoding, labels.name))
        reports += [images, labels]
    return reports


def _label_map_inspector(images: Path, labels: Path, max_label: int) -> Inspect:
    """Return a function that checks channels, labels and size of a label map."""
    read = folder_reader(labels)

    def inspect(name: str) -> FileProblem | None:
        try:
            with open_image(read(name)) as label_map:
                size, bands = label_map.size, label_map.getbands()
                highest = int(np.asarray(label_map).max()) if len(bands) == 1 else None
        except Exception as error:  # Decoders may raise any exception for damaged files.
            return FileProblem('label maps that cannot be decoded', name, failure_reason(error))
        if highest is None:
            return FileProblem('label maps with several channels', name, ''.join(bands))
        if highest > max_label:
            return FileProblem(f'label maps with a value above {max_label}', name, str(highest))
        expected = _image_size(images / f'{Path(name).stem}.jpg')
        if expected and size != expected:
            detail = '{}x{} instead of {}x{}'.format(*size, *expected)
            return FileProblem('label maps whose size differs from that of their image', name, detail)
        return None

    return inspect


def _image_size(path: Path) -> tuple[int, int] | None:
    """Return None for a missing or damaged image, which is reported with the images."""
    try:
        with open_image(read_file(path)) as image:
            return image.size
    except Exception:
        return None
