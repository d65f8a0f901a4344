"""Images of every bad kind: read in a defined way, or told with file and reason."""

import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import Image

from inline.datasets.reading import HIGHEST_MAX_PIXELS, LoadImage, quick_size
from inline.errors import UnreadableError, UserError
from tests.datasets.bad_data import PICTURE, RANDOM, Row, encode, picture

BGR = PICTURE[..., ::-1]
GREY = np.repeat(np.asarray(picture('L'))[..., None], 3, axis=-1)
DEEP = RANDOM.integers(0, 65536, (24, 40, 3), dtype=np.uint16)
TURNED = Image.Exif()
TURNED[0x0112] = 6


def opencv(kind: str, array: np.ndarray) -> bytes:
    return cv2.imencode(kind, array)[1].tobytes()


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def see_through() -> bytes:
    image = picture('RGBA')
    image.putalpha(7)
    return encode(image, 'PNG')


def frames(kind: str) -> bytes:
    return encode(picture(), kind, save_all=True, append_images=[Image.new('RGB', (40, 24))])


NOISE = Image.fromarray(RANDOM.integers(0, 256, (24, 40, 3), dtype=np.uint8))
JPEG, PNG = encode(NOISE, 'JPEG', quality=95), encode(picture(), 'PNG')

UNREADABLE = {
    'an empty file': Row('skipped', 'the file is empty', lambda: b''),
    'no file': Row('skipped', 'No such file or directory', lambda: None),
    'a file that is no image': Row('skipped', 'not an image', lambda: b'<html>404 Not Found</html>' * 9),
    'a JPEG cut off in the middle': Row('skipped', 'truncated', lambda: JPEG[: len(JPEG) // 2]),
    'a JPEG without its last bytes': Row('skipped', 'truncated', lambda: JPEG[:-20]),
    'a JPEG cut off in its header': Row('skipped', 'cannot be read', lambda: JPEG[:100]),
    'a JPEG whose second half is zeros': Row(
        'skipped', 'truncated', lambda: JPEG[: len(JPEG) // 2] + bytes(len(JPEG) // 2)
    ),
    'a PNG cut off in the middle': Row('skipped', 'truncated', lambda: PNG[: len(PNG) // 2]),
    'a PNG without its last bytes': Row('skipped', 'it is damaged', lambda: PNG[:-8]),
    'a PNG with a wrong check sum': Row('skipped', 'cannot be read', lambda: changed(PNG, len(PNG) - 14)),
    'a WebP cut off': Row('skipped', 'cannot be read', lambda: encode(picture(), 'WEBP')[:-30]),
    'a TIFF cut off': Row('skipped', 'truncated', lambda: encode(picture(), 'TIFF')[:-30]),
    'a TIFF of 32-bit floats': Row(
        'skipped', 'its pixels are 32-bit', lambda: encode(Image.fromarray(np.float32(GREY[..., 0])), 'TIFF')
    ),
    'a TIFF of CIELAB colours': Row(
        'skipped', 'its colours are CIELAB', lambda: encode(picture('LAB'), 'TIFF')
    ),
    'an image of more pixels than `bad_data.max_pixels`': Row(
        'skipped',
        'has 30000x20000 pixels: at most 100,000,000 are read',
        lambda: encode(Image.new('1', (30000, 20000)), 'PNG'),
    ),
    'an image more than 100 times as long as wide': Row(
        'skipped',
        'one side may be 100 times the other',
        lambda: encode(picture().resize((5000, 1)), 'PNG'),
    ),
}

READ = {
    'an image of one channel': Row(
        'read', 'as three equal channels', lambda: (encode(picture('L'), 'PNG'), GREY)
    ),
    'an image of 1 bit': Row(
        'read',
        'as black and white',
        lambda: (encode(picture('1'), 'PNG'), np.repeat(255 * np.uint8(picture('1'))[..., None], 3, axis=-1)),
    ),
    'an image with a palette': Row(
        'read',
        'as its colours',
        lambda: (encode(picture('P'), 'PNG'), np.asarray(picture('P').convert('RGB'))[..., ::-1]),
    ),
    'an image with opacity': Row('read', 'without it: the colours below count', lambda: (see_through(), BGR)),
    'a grey image with opacity': Row('read', 'without it', lambda: (encode(picture('LA'), 'PNG'), GREY)),
    'an image of 16 bits': Row(
        'read', 'as the upper 8 bits', lambda: (opencv('.png', DEEP), (DEEP >> 8).astype(np.uint8))
    ),
    'a TIFF of 16 bits': Row(
        'read', 'as 8 bits, rounded', lambda: (opencv('.tiff', DEEP), (DEEP >> 8).astype(np.uint8))
    ),
    'a TIFF in CMYK': Row(
        'read', 'as RGB, without a colour profile', lambda: (encode(picture('CMYK'), 'TIFF'), BGR)
    ),
    'a JPEG in CMYK': Row(
        'read',
        'as RGB, without a colour profile',
        lambda: (encode(picture('CMYK'), 'JPEG', quality=98, subsampling=0), BGR),
    ),
    'an animated GIF': Row(
        'read',
        'its first frame',
        lambda: (frames('GIF'), BGR),
    ),
    'a WebP or PNG with several frames': Row('read', 'its first frame', lambda: (frames('PNG'), BGR)),
    'a TIFF with several pages': Row('read', 'its first page', lambda: (frames('TIFF'), BGR)),
    'an image with an EXIF orientation': Row(
        'read', 'turned as it says', lambda: (encode(picture(), 'PNG', exif=TURNED), np.rot90(BGR, -1))
    ),
    'a file after whose image more bytes follow': Row(
        'read', 'without them', lambda: (PNG + b'more' * 9, BGR)
    ),
    'an image of one row of pixels': Row(
        'read', 'like any other', lambda: (encode(picture().crop((0, 0, 40, 1)), 'PNG'), BGR[:1])
    ),
    'an image of one pixel': Row(
        'read', 'like any other', lambda: (encode(picture().crop((0, 0, 1, 1)), 'PNG'), BGR[:1, :1])
    ),
    'a file with the ending of another format': Row(
        'read', 'by its content', lambda: (encode(picture(), 'BMP'), BGR)
    ),
    'a JPEG with bytes changed among its pixels': Row(
        'read', 'as decoded: a JPEG has no check sums', lambda: (changed(JPEG, len(JPEG) - 40), None)
    ),
}

LOSSY = {'a TIFF of 16 bits': 1, 'a JPEG in CMYK': 6, 'an animated GIF': 30}


@pytest.mark.parametrize('name', UNREADABLE)
def test_unreadable_images_are_told_with_file_and_reason(name: str, tmp_path: Path) -> None:
    row, path = UNREADABLE[name], tmp_path / 'picture.jpg'
    content = row.make()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        LoadImage()({'img_path': str(path)})
    message = str(caught.value)
    assert message.startswith(repr(str(path)))
    assert row.told in message
    assert '\n' not in message
    assert LoadImage(ignore_empty=True)({'img_path': str(path)}) is None


@pytest.mark.parametrize('name', READ)
def test_unusual_images_have_a_meaning(name: str, tmp_path: Path) -> None:
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


def test_a_truncated_jpeg_is_noticed_wherever_it_ends(tmp_path: Path) -> None:
    for kind in (JPEG, encode(NOISE, 'JPEG', progressive=True)):
        for end in [*range(2, len(kind), 31), len(kind) - 2, len(kind) - 1]:
            path = tmp_path / 'picture.jpg'
            path.write_bytes(kind[:end])
            with pytest.raises(UnreadableError):
                LoadImage()({'img_path': str(path)})


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'BMP', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('options', [{}, {'to_float32': True}, {'color_type': 'grayscale'}])
def test_ordinary_images_are_read_as_mmcv_reads_them(kind: str, options: dict, tmp_path: Path) -> None:
    for i, size in enumerate(((40, 24), (23, 57), (1, 9))):
        path = tmp_path / f'{i}.{kind.lower()}'
        noise = Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        noise.save(path, **({'progressive': i == 1} if kind == 'JPEG' else {}))
        ours = LoadImage(**options)({'img_path': str(path)})
        theirs = LoadImageFromFile(**options)({'img_path': str(path)})
        assert ours is not None
        assert ours.keys() == theirs.keys()
        assert ours['img'].dtype == theirs['img'].dtype
        assert np.array_equal(ours['img'], theirs['img'])
        assert (ours['img_shape'], ours['ori_shape']) == (theirs['img_shape'], theirs['ori_shape'])


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
@pytest.mark.parametrize('size', [(1, 1), (40, 24), (23, 57), (300, 1000)])
def test_sizes_of_headers_are_those_of_pillow(kind: str, size: tuple[int, int]) -> None:
    for options in ({}, {'exif': TURNED}, {'progressive': True, 'icc_profile': b'x' * 70000}):
        options = {key: value for key, value in options.items() if kind == 'JPEG' or key == 'exif'}
        assert quick_size(encode(picture().resize(size), kind, **options)) == size
    assert quick_size(encode(picture(), 'BMP')) is None


SIZES = {
    'an image of another size than its annotations say': Row(
        'skipped', 'but its annotations are of 41x24', lambda: (24, 41)
    ),
    'an image with an EXIF orientation and annotations of the image that is not turned': Row(
        'read', 'not turned', lambda: (24, 40)
    ),
}


@pytest.mark.parametrize('name', SIZES)
def test_annotations_give_the_size(name: str, tmp_path: Path) -> None:
    height, width = SIZES[name].make()
    path = tmp_path / 'picture.png'
    path.write_bytes(encode(picture(), 'PNG', exif=TURNED))
    results = {'img_path': str(path), 'height': height, 'width': width}
    if SIZES[name].outcome == 'skipped':
        with pytest.raises(UnreadableError, match=SIZES[name].told):
            LoadImage()(results)
        return
    assert np.array_equal(LoadImage()(dict(results))['img'], BGR)
    turned = LoadImage()({**results, 'height': width, 'width': height})
    assert np.array_equal(turned['img'], np.rot90(BGR, -1))


def test_the_limit_of_pixels_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / 'picture.png'
    path.write_bytes(PNG)
    assert LoadImage(max_pixels=24 * 40)({'img_path': str(path)}) is not None
    with pytest.raises(UnreadableError, match='has 40x24 pixels: at most 959 are read'):
        LoadImage(max_pixels=24 * 40 - 1)({'img_path': str(path)})
    for wrong in (0, HIGHEST_MAX_PIXELS + 1):
        with pytest.raises(UserError, match=f'max_pixels {wrong}: must be from 1 to'):
            LoadImage(max_pixels=wrong)
    path.write_bytes(encode(Image.new('1', (20000, 20000)), 'TIFF', compression='group4'))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        with pytest.raises(UnreadableError, match='has more than 178,956,970 pixels'):
            LoadImage(max_pixels=HIGHEST_MAX_PIXELS)({'img_path': str(path)})
