"""Measure the CPU time to read and decode an image, from files and from a zip.

python -m benchmarks.reads

Writes JPEGs of about the size of ImageNet's (500x375 pixels, 110 kB) to a temporary folder and to an
uncompressed zip, and reads all of them in random order, several times. The files are in the page cache, so
that the times are those of this process and the kernel. CPU time depends less on the load of the machine than
elapsed time. What a disk or network adds must be measured on the storage itself.
"""

import random
import resource
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from inline.datasets.image_file import read_file
from inline.datasets.zip_archive import ZipArchive
from inline.utils.errors import OneLineParser, UserError, exit_on_user_error

HEIGHT, WIDTH, QUALITY = 375, 500, 93
FILES_PER_FOLDER = 100


def write_images(folder: Path, count: int) -> tuple[list[str], Path]:
    """Write `count` JPEGs in class folders and the same in a zip; return their names and the zip."""
    rng = np.random.default_rng(0)
    names = [f'{i // FILES_PER_FOLDER:04}/{i:06}.jpg' for i in range(count)]
    zip_path = folder / 'images.zip'
    with zipfile.ZipFile(zip_path, 'w') as archive:
        for name in names:
            # Smooth areas with noise, for a file size like that of a photograph.
            smooth = cv2.resize(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8), (WIDTH, HEIGHT))
            noise = rng.normal(0, 11, (HEIGHT, WIDTH, 1))
            image = np.clip(smooth + noise, 0, 255).astype(np.uint8)
            content = cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            archive.writestr(name, content)
    return names, zip_path


def cpu_seconds(read: Callable[[str], object], names: list[str], rounds: int) -> float:
    """Return the CPU time of this process per call, user and system, the least of several rounds."""
    order = names.copy()
    best = float('inf')
    for seed in range(rounds):
        random.Random(seed).shuffle(order)
        before = resource.getrusage(resource.RUSAGE_SELF)
        for name in order:
            read(name)
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent / len(names))
    return best


def main() -> None:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument('--images', type=int, default=2000, help='number of images (default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=5, help='how often all are read (default: %(default)s)')
    args = parser.parse_args()
    if min(args.images, args.rounds) < 1:
        raise UserError(f'--images {args.images}, --rounds {args.rounds}: must be 1 or more')
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names, zip_path = write_images(folder, args.images)
        archive = ZipArchive(zip_path)
        decoded = [np.frombuffer(archive.read(name), np.uint8) for name in names[:200]]
        reads: dict[str, Callable[[str], object]] = {
            'read a file': lambda name: read_file(folder / name),
            'read from the zip, with its CRC': archive.read,
        }
        print(f'{args.images} images of {zip_path.stat().st_size / args.images / 1000:.0f} kB')
        for what, read in reads.items():
            report(what, cpu_seconds(read, names, args.rounds))
        indices = [str(i) for i in range(len(decoded))]
        report(
            'decode a JPEG',
            cpu_seconds(lambda i: cv2.imdecode(decoded[int(i)], cv2.IMREAD_COLOR), indices, args.rounds),
        )


def report(what: str, seconds: float) -> None:
    print(f'{what}: {seconds * 1e6:.0f} us of CPU time, {1 / max(seconds, 1e-9):,.0f} per second and core')


if __name__ == '__main__':
    with exit_on_user_error():
        main()
