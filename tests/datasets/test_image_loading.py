"""Unusual images are loaded in a defined way; unreadable ones raise an error with file and reason."""

import io
import os
import struct
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import EpsImagePlugin, Image

from inline.datasets.image_file import HIGHEST_MAX_PIXELS, count_jpeg_scans, header_size, open_image
from inline.datasets.loading import LoadImage, LoadLabelMap
from inline.datasets.prepare.inspection import UNDECODABLE, folder_reader, image_decoder
from inline.utils.errors import UnreadableError, UserError
from tests.datasets.invalid_data import PICTURE, RANDOM, Case, encode, picture

BGR = PICTURE[..., ::-1]
GRAY = np.repeat(np.asarray(picture('L'))[..., None], 3, axis=-1)
DEEP = RANDOM.integers(0, 65536, (24, 40, 3), dtype=np.uint16)
ROTATED = Image.Exif()
ROTATED[0x0112] = 6


def opencv(extension: str, array: np.ndarray) -> bytes:
    return cv2.imencode(extension, array)[1].tobytes()


def flip_byte(content: bytes, index: int) -> bytes:
    return content[:index] + bytes([content[index] ^ 0xFF]) + content[index + 1 :]


def transparent() -> bytes:
    image = picture('RGBA')
    image.putalpha(7)
    return encode(image, 'PNG')


def frames(image_format: str) -> bytes:
    return encode(picture(), image_format, save_all=True, append_images=[Image.new('RGB', (40, 24))])


def with_header_size(width: int, height: int) -> bytes:
    """Return a PNG whose header states another size."""
    return PNG[:16] + struct.pack('>II', width, height) + PNG[24:]


def with_scans(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated."""
    content = encode(picture(), 'JPEG', progressive=True)
    tables, end = content.rindex(b'\xff\xc4'), len(content) - 2
    missing = count - content.count(b'\xff\xda')
    return content[:end] + content[tables:end] * missing + content[end:]


EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n'
NOISE = Image.fromarray(RANDOM.integers(0, 256, (24, 40, 3), dtype=np.uint8))
JPEG, PNG = encode(NOISE, 'JPEG', quality=95), encode(picture(), 'PNG')

UNREADABLE = {
    'an EPS file named like an image': Case('skipped', 'not an image', lambda: EPS),
    'a JPEG with more than 100 scans': Case(
        'skipped', 'a JPEG with 101 scans: at most 100 are allowed', lambda: with_scans(101)
    ),
    'an empty file': Case('skipped', 'the file is empty', lambda: b''),
    'a missing file': Case('skipped', 'No such file or directory', lambda: None),
    'a file that is not an image': Case('skipped', 'not an image', lambda: b'<html>404 Not Found</html>' * 9),
    'a JPEG truncated in the middle': Case('skipped', 'truncated', lambda: JPEG[: len(JPEG) // 2]),
    'a JPEG without its last bytes': Case('skipped', 'truncated', lambda: JPEG[:-20]),
    'a JPEG truncated in its header': Case('skipped', 'cannot be read', lambda: JPEG[:100]),
    'a JPEG whose second half is zeros': Case(
        'skipped', 'truncated', lambda: JPEG[: len(JPEG) // 2] + bytes(len(JPEG) // 2)
    ),
    'a PNG truncated in the middle': Case('skipped', 'truncated', lambda: PNG[: len(PNG) // 2]),
    'a PNG without its last bytes': Case('skipped', 'OpenCV cannot decode this PNG', lambda: PNG[:-8]),
    'a PNG with a wrong checksum': Case('skipped', 'cannot be read', lambda: flip_byte(PNG, len(PNG) - 14)),
    'a truncated WebP': Case('skipped', 'cannot be read', lambda: encode(picture(), 'WEBP')[:-30]),
    'a truncated TIFF': Case('skipped', 'truncated', lambda: encode(picture(), 'TIFF')[:-30]),
    'a TIFF of 32-bit floats': Case(
        'skipped',
        '32-bit images are not supported',
        lambda: encode(Image.fromarray(np.float32(GRAY[..., 0])), 'TIFF'),
    ),
    'a TIFF in CIELAB': Case(
        'skipped', 'CIELAB images are not supported', lambda: encode(picture('LAB'), 'TIFF')
    ),
    'an image with more pixels than `data_validation.max_pixels`': Case(
        'skipped',
        'is 30000x20000 pixels: at most 100,000,000 are allowed',
        lambda: with_header_size(30000, 20000),
    ),
    'an image with an aspect ratio above 100': Case(
        'skipped',
        'the aspect ratio must be at most 100',
        lambda: encode(picture().resize((5000, 1)), 'PNG'),
    ),
}

READ = {
    'a grayscale image': Case(
        'loaded', 'as three equal channels', lambda: (encode(picture('L'), 'PNG'), GRAY)
    ),
    'a 1-bit image': Case(
        'loaded',
        'as black and white',
        lambda: (encode(picture('1'), 'PNG'), np.repeat(255 * np.uint8(picture('1'))[..., None], 3, axis=-1)),
    ),
    'an image with a palette': Case(
        'loaded',
        'as the colors of its palette',
        lambda: (encode(picture('P'), 'PNG'), np.asarray(picture('P').convert('RGB'))[..., ::-1]),
    ),
    'an image with an alpha channel': Case(
        'loaded', 'without alpha: the RGB values as stored', lambda: (transparent(), BGR)
    ),
    'a grayscale image with an alpha channel': Case(
        'loaded', 'without alpha', lambda: (encode(picture('LA'), 'PNG'), GRAY)
    ),
    'a 16-bit image': Case(
        'loaded', 'as the upper 8 bits', lambda: (opencv('.png', DEEP), (DEEP >> 8).astype(np.uint8))
    ),
    'a 16-bit TIFF': Case(
        'loaded', 'as 8 bits, rounded', lambda: (opencv('.tiff', DEEP), (DEEP >> 8).astype(np.uint8))
    ),
    'a TIFF in CMYK': Case(
        'loaded', 'as RGB, without its color profile', lambda: (encode(picture('CMYK'), 'TIFF'), BGR)
    ),
    'a JPEG in CMYK': Case(
        'loaded',
        'as RGB, without its color profile',
        lambda: (encode(picture('CMYK'), 'JPEG', quality=98, subsampling=0), BGR),
    ),
    'an animated GIF': Case(
        'loaded',
        'its first frame',
        lambda: (frames('GIF'), BGR),
    ),
    'a WebP or PNG with several frames': Case('loaded', 'its first frame', lambda: (frames('PNG'), BGR)),
    'a TIFF with several pages': Case('loaded', 'its first page', lambda: (frames('TIFF'), BGR)),
    'an image with an EXIF orientation': Case(
        'loaded', 'rotated', lambda: (encode(picture(), 'PNG', exif=ROTATED), np.rot90(BGR, -1))
    ),
    'an image followed by other bytes': Case('loaded', 'without them', lambda: (PNG + b'more' * 9, BGR)),
    'an image of one row': Case(
        'loaded', 'normally', lambda: (encode(picture().crop((0, 0, 40, 1)), 'PNG'), BGR[:1])
    ),
    'an image of one pixel': Case(
        'loaded', 'normally', lambda: (encode(picture().crop((0, 0, 1, 1)), 'PNG'), BGR[:1, :1])
    ),
    'a file with the extension of another format': Case(
        'loaded', 'by its content', lambda: (encode(picture(), 'BMP'), BGR)
    ),
    'a JPEG with modified pixel data': Case(
        'loaded', 'as decoded: JPEG has no checksums', lambda: (flip_byte(JPEG, len(JPEG) - 40), None)
    ),
}

LOSSY = {'a 16-bit TIFF': 1, 'a JPEG in CMYK': 6, 'an animated GIF': 30}


@pytest.mark.parametrize('name', UNREADABLE)
def test_unreadable_images_raise_with_file_and_reason(name: str, tmp_path: Path) -> None:
    row, path = UNREADABLE[name], tmp_path / 'picture.jpg'
    content = row.make()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        LoadImage()({'img_path': str(path)})
    message = str(caught.value)
    assert message.startswith(repr(str(path)))
    assert row.message in message
    assert '\n' not in message
    assert LoadImage(ignore_empty=True)({'img_path': str(path)}) is None


@pytest.mark.parametrize('name', READ)
def test_unusual_images_are_loaded_as_documented(name: str, tmp_path: Path) -> None:
    content, expected = READ[name].make()
    path = tmp_path / 'picture.jpg'
    path.write_bytes(content)
    results = LoadImage()({'img_path': str(path)})
    assert results is not None
    image = results['img']
    assert image.dtype == np.uint8
    if expected is None:
        assert image.shape == (24, 40, 3)
        return
    assert image.shape == expected.shape
    assert np.abs(image.astype(int) - expected).max() <= LOSSY.get(name, 0)
    assert results['img_shape'] == results['ori_shape'] == expected.shape[:2]


def test_a_jpeg_truncated_anywhere_is_detected(tmp_path: Path) -> None:
    for content in (JPEG, encode(NOISE, 'JPEG', progressive=True)):
        for end in [*range(2, len(content), 31), len(content) - 2, len(content) - 1]:
            path = tmp_path / 'picture.jpg'
            path.write_bytes(content[:end])
            with pytest.raises(UnreadableError):
                LoadImage()({'img_path': str(path)})


@pytest.mark.parametrize('image_format', ['JPEG', 'PNG', 'BMP', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('options', [{}, {'to_float32': True}, {'color_type': 'grayscale'}])
def test_ordinary_images_equal_those_of_mmcv(image_format: str, options: dict, tmp_path: Path) -> None:
    for i, size in enumerate(((40, 24), (23, 57), (1, 9))):
        path = tmp_path / f'{i}.{image_format.lower()}'
        noise = Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        noise.save(path, **({'progressive': i == 1} if image_format == 'JPEG' else {}))
        ours = LoadImage(**options)({'img_path': str(path)})
        theirs = LoadImageFromFile(**options)({'img_path': str(path)})
        assert ours is not None
        assert ours.keys() == theirs.keys()
        assert ours['img'].dtype == theirs['img'].dtype
        assert np.array_equal(ours['img'], theirs['img'])
        assert (ours['img_shape'], ours['ori_shape']) == (theirs['img_shape'], theirs['ori_shape'])


@pytest.mark.parametrize('image_format', ['JPEG', 'PNG'])
@pytest.mark.parametrize('size', [(1, 1), (40, 24), (23, 57), (300, 1000)])
def test_header_sizes_equal_those_of_pillow(image_format: str, size: tuple[int, int]) -> None:
    for options in ({}, {'exif': ROTATED}, {'progressive': True, 'icc_profile': b'x' * 70000}):
        options = {key: value for key, value in options.items() if image_format == 'JPEG' or key == 'exif'}
        assert header_size(encode(picture().resize(size), image_format, **options)) == size
    assert header_size(encode(picture(), 'BMP')) is None


SPECIAL_FILES = {
    'a device such as /dev/zero': Case(
        'skipped', 'not a regular file', lambda path: path.symlink_to('/dev/zero')
    ),
    'a named pipe': Case('skipped', 'not a regular file', os.mkfifo),
    'a folder named like an image': Case('skipped', 'Is a directory', Path.mkdir),
    'a file of more than 1 GiB': Case(
        'skipped', 'has 2,000,000,000 bytes', lambda path: path.touch() or os.truncate(path, 2_000_000_000)
    ),
}


@pytest.mark.parametrize('name', SPECIAL_FILES)
def test_special_files_are_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / 'picture.png'
    SPECIAL_FILES[name].make(path)
    with pytest.raises(UnreadableError, match=SPECIAL_FILES[name].message):
        LoadImage()({'img_path': str(path)})
    with pytest.raises(UnreadableError, match='the file name contains a NUL character'):
        LoadImage()({'img_path': f'{path}\0.png'})


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_ghostscript_is_never_started(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts it for EPS files, whatever their name. Here it is a program that leaves a file."""
    started, program = tmp_path / 'started', tmp_path / 'gs'
    program.write_text(f'#!/bin/sh\necho >> {started}\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.setattr(EpsImagePlugin, 'gs_binary', None)
    with pytest.raises(OSError), Image.open(io.BytesIO(EPS)) as image:
        image.load()
    assert started.exists(), 'the program would not be noticed'
    started.unlink()
    path = tmp_path / 'picture.png'
    path.write_bytes(EPS)
    with pytest.raises(UnreadableError, match='not an image'):
        LoadImage(imdecode_backend=backend)({'img_path': str(path)})
    with pytest.raises(UnreadableError, match='not an image'):
        LoadLabelMap()({'seg_map_path': str(path), 'seg_fields': []})
    assert image_decoder(folder_reader(tmp_path))(path.name) == (UNDECODABLE, path.name, 'not an image')
    assert not started.exists()


def test_scans_are_counted_in_the_image_only() -> None:
    assert count_jpeg_scans(JPEG) == 1
    assert count_jpeg_scans(encode(picture(), 'JPEG', progressive=True)) == 10
    for content in (
        with_scans(100),
        JPEG + with_scans(300),
        encode(NOISE, 'JPEG', comment=b'\xff\xda' * 300),
    ):
        assert count_jpeg_scans(content) <= 100
        assert LoadImage().decode(content, 'a.jpg').shape == (24, 40, 3)
    # An end marker inside a comment does not hide the scans after it.
    hidden = with_scans(300)
    frame = hidden.index(b'\xff\xc2')
    hidden = hidden[:frame] + b'\xff\xfe\x00\x04\xff\xd9' + hidden[frame:]
    assert count_jpeg_scans(hidden) == 300
    with pytest.raises(UnreadableError, match='300 scans'):
        LoadImage().decode(hidden, 'a.jpg')
    with pytest.raises(OSError, match='300 scans'):
        open_image(hidden)


SIZES = {
    'an image whose size differs from its annotations': Case(
        'skipped', 'but its annotations are for 41x24', lambda: (24, 41)
    ),
    'an image with an EXIF orientation and annotations for the unrotated image': Case(
        'loaded', 'without rotation', lambda: (24, 40)
    ),
}


@pytest.mark.parametrize('name', SIZES)
def test_image_size_is_compared_with_the_annotations(name: str, tmp_path: Path) -> None:
    height, width = SIZES[name].make()
    path = tmp_path / 'picture.png'
    path.write_bytes(encode(picture(), 'PNG', exif=ROTATED))
    results = {'img_path': str(path), 'height': height, 'width': width}
    if SIZES[name].outcome == 'skipped':
        with pytest.raises(UnreadableError, match=SIZES[name].message):
            LoadImage()(results)
        return
    assert np.array_equal(LoadImage()(dict(results))['img'], BGR)
    rotated = LoadImage()({**results, 'height': width, 'width': height})
    assert np.array_equal(rotated['img'], np.rot90(BGR, -1))


def test_max_pixels(tmp_path: Path) -> None:
    path = tmp_path / 'picture.png'
    path.write_bytes(PNG)
    assert LoadImage(max_pixels=24 * 40)({'img_path': str(path)}) is not None
    with pytest.raises(UnreadableError, match='is 40x24 pixels: at most 959 are allowed'):
        LoadImage(max_pixels=24 * 40 - 1)({'img_path': str(path)})
    for wrong in (0, HIGHEST_MAX_PIXELS + 1):
        with pytest.raises(UserError, match=f'max_pixels {wrong}: must be from 1 to'):
            LoadImage(max_pixels=wrong)
    path.write_bytes(encode(Image.new('1', (20000, 20000)), 'TIFF', compression='group4'))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        with pytest.raises(UnreadableError, match='has more than 178,956,970 pixels'):
            LoadImage(max_pixels=HIGHEST_MAX_PIXELS)({'img_path': str(path)})
