"""Which checkpoint a run resumes from, and what is reported about the others."""

import io
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging.history_buffer import HistoryBuffer

from inline.checkpoints import read_file
from inline.engine import resume
from inline.engine.distributed.setup import start_gloo
from inline.engine.launch import prepare_run
from inline.engine.resume import choose_checkpoint, newest_valid, read_state
from inline.utils.errors import UserError
from tests.engine.distributed.ranks import run_ranks


def content(step: int, seed: int = 7) -> dict:
    weights = {'weight': torch.arange(5000.0)}
    meta = {'epoch': 0, 'iter': step, 'seed': seed}
    return {'meta': meta, 'state_dict': weights, 'message_hub': {}, 'optimizer': {}}


def checkpoint(step: int) -> bytes:
    buffer = io.BytesIO()
    torch.save(content(step), buffer)
    return buffer.getvalue()


def save(folder: Path, step: int, time: int | None = None) -> Path:
    path = folder / f'iter_{step}.pth'
    path.write_bytes(checkpoint(step))
    os.utime(path, (time or step, time or step))
    return path


def write_last_checkpoint(folder: Path, path: Path | str) -> None:
    (folder / 'last_checkpoint').write_text(str(path))


def config(folder: Path, **settings: object) -> Config:
    return Config({'work_dir': str(folder), 'launcher': 'none', 'load_from': None, **settings})


def zeroed_inside(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(512) + data[middle + 512 :]


def stored(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def some_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as file:
        file.writestr('notes.txt', 'no checkpoint')
    return buffer.getvalue()


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    'empty': (lambda _: b'', 'is empty (0 bytes)'),
    'one byte': (lambda data: data[:1], 'damaged or not a checkpoint'),
    'truncated in the middle': (lambda data: data[: len(data) // 2], 'is damaged: its end is missing'),
    'truncated by one byte': (lambda data: data[:-1], 'is damaged: its end is missing'),
    'zeros inside': (zeroed_inside, 'the checksum of'),
    'all zeros': (lambda data: bytes(len(data)), 'damaged or not a checkpoint'),
    'text': (lambda _: b'Not found\n', 'damaged or not a checkpoint'),
    'another zip': (lambda _: some_zip(), 'damaged or not a checkpoint'),
    'weights only': (lambda _: stored({'state_dict': {}}), 'has no training state'),
    'a list': (lambda _: stored([1, 2]), 'has no training state'),
    'code': (lambda _: stored({'meta': os.system}), 'which is not plain data'),
}


@pytest.mark.parametrize('kind', DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_reported(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, reason = DAMAGES[kind]
    good, bad = save(tmp_path, 10), save(tmp_path, 20)
    bad.write_bytes(damage(bad.read_bytes()))
    write_last_checkpoint(tmp_path, bad)
    assert newest_valid(config(tmp_path)) == (str(good), 7)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f'resume: skipped {bad}: ')
    assert reason in lines[0]


@pytest.mark.parametrize('kind', DAMAGES)
def test_a_damaged_checkpoint_given_by_the_user_is_an_error(kind: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[kind]
    save(tmp_path, 10)
    bad = save(tmp_path, 20)
    bad.write_bytes(damage(bad.read_bytes()))
    with pytest.raises(UserError) as raised:
        choose_checkpoint(config(tmp_path), str(bad))
    assert str(bad) in str(raised.value)
    assert reason in str(raised.value)


def test_any_truncation_and_any_wrong_byte_is_detected(tmp_path: Path) -> None:
    data, path, draw = checkpoint(1), tmp_path / 'x.pth', random.Random(0)
    weights = data.index(torch.arange(5000.0).numpy().tobytes())
    for _ in range(30):
        path.write_bytes(data[: draw.randrange(len(data))])
        with pytest.raises(UserError):
            read_state(str(path))
        wrong = bytearray(data)
        wrong[weights + draw.randrange(20000)] ^= 1 << draw.randrange(8)
        path.write_bytes(wrong)
        with pytest.raises(UserError, match='checksum'):
            read_state(str(path))


def test_tensors_are_not_loaded_to_choose_a_checkpoint(tmp_path: Path) -> None:
    content = read_state(str(save(tmp_path, 10)))
    assert content['meta']['iter'] == 10
    assert all(weight.is_meta for weight in content['state_dict'].values())


def test_truncated_tensors_are_detected_without_checksums(tmp_path: Path) -> None:
    path = tmp_path / 'x.pth'
    path.write_bytes(small_checkpoint(as_zip=False)[:-4])
    with pytest.raises(UserError, match='damaged'):
        read_state(str(path))


def test_a_checkpoint_without_optimizer_state_is_an_error(tmp_path: Path) -> None:
    """The best checkpoint is saved without it: MMEngine would silently continue with a new optimizer."""
    content = torch.load(save(tmp_path, 10), weights_only=True)
    del content['optimizer']
    best = tmp_path / 'best_top1_iter_10.pth'
    torch.save(content, best)
    with pytest.raises(UserError, match=r"best_top1_iter_10\.pth' has no optimizer state"):
        choose_checkpoint(config(tmp_path), str(best))


def choose_without_permission(folder: Path) -> str:
    """Choose a checkpoint on this rank, where rank 0 may not read the folder; return the error."""
    start_gloo('pytorch')
    if torch.distributed.get_rank() == 0:
        # Tests may run as root, which may read everything.
        resume._read_last_checkpoint = deny
    try:
        choose_checkpoint(config(folder), 'auto')
    except UserError as error:
        return str(error)
    return 'no error'


def deny(cfg: Config) -> str:
    raise PermissionError(13, 'Permission denied', str(Path(cfg.work_dir, 'last_checkpoint')))


def test_no_rank_waits_if_rank_zero_cannot_read_the_work_directory(tmp_path: Path) -> None:
    save(tmp_path, 10)
    message = f'{str(tmp_path / "last_checkpoint")!r} cannot be accessed: Permission denied'
    errors = run_ranks(2, lambda: choose_without_permission(tmp_path), tmp_path / 'ranks')
    assert errors == [message, message]


def test_no_good_checkpoint_is_reported_in_one_line(tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path, step).write_bytes(b'')
    with pytest.raises(UserError, match=r'no checkpoint in .* can be resumed, see above') as raised:
        newest_valid(config(tmp_path))
    assert '\n' not in str(raised.value)


def test_without_any_checkpoint_training_starts_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / 'missing'):
        cfg = config(folder, load_from='start.pth')
        assert choose_checkpoint(cfg, 'auto') is None
        assert cfg.load_from == 'start.pth'
        assert 'training starts from the beginning' in capsys.readouterr().out


def test_a_deleted_last_checkpoint_is_not_a_fresh_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_last_checkpoint(tmp_path, tmp_path / 'iter_30.pth')
    with pytest.raises(UserError, match='can be resumed'):
        newest_valid(config(tmp_path))
    assert 'iter_30.pth: does not exist' in capsys.readouterr().out
    good = save(tmp_path, 20)
    assert newest_valid(config(tmp_path))[0] == str(good)


@pytest.mark.parametrize(
    'named', ['http://127.0.0.1:9/iter_30.pth', 'file:///iter_30.pth', 'a\x1b[2Jb', '..']
)
def test_last_checkpoint_must_name_a_file_of_the_run(named: str, tmp_path: Path) -> None:
    """MMEngine would download a URL."""
    save(tmp_path, 20)
    write_last_checkpoint(tmp_path, named)
    with pytest.raises(
        UserError, match=r"last_checkpoint' names .* must be a checkpoint in the work directory"
    ):
        newest_valid(config(tmp_path))


def test_last_checkpoint_cannot_name_a_file_of_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, other = tmp_path / 'work', tmp_path / 'other'
    for folder in (work, other):
        folder.mkdir()
    own = save(work, 20)
    write_last_checkpoint(work, save(other, 30))
    assert newest_valid(config(work))[0] == str(own)
    assert f'{work / "iter_30.pth"}: does not exist' in capsys.readouterr().out


def test_a_compressed_checkpoint_is_not_expanded(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    with zipfile.ZipFile(tmp_path / 'bomb.pth', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('archive/data/0', bytes(2**20))
    (tmp_path / 'bomb.pth').replace(path)
    with pytest.raises(UserError, match='cannot be loaded: it is compressed'):
        read_state(str(path))


def test_a_run_does_not_write_through_links_in_its_work_directory(tmp_path: Path) -> None:
    work, outside = tmp_path / 'work', tmp_path / 'outside'
    work.mkdir()
    (work / resume.STARTED_NAME).symlink_to(outside)
    with pytest.raises(UserError, match=r'is a symbolic link to .* outside of the folder'):
        prepare_run(config(work))
    assert not outside.exists()


def test_a_checkpoint_newer_than_last_checkpoint_is_used(tmp_path: Path) -> None:
    write_last_checkpoint(tmp_path, save(tmp_path, 90))
    new = save(tmp_path, 100)
    assert newest_valid(config(tmp_path))[0] == str(new)


def test_checkpoints_of_an_older_run_are_not_used(tmp_path: Path) -> None:
    save(tmp_path, 1000, time=50)
    own = save(tmp_path, 100, time=60)
    write_last_checkpoint(tmp_path, own)
    assert newest_valid(config(tmp_path))[0] == str(own)


def test_a_copy_with_other_modification_times_resumes_from_the_same_step(tmp_path: Path) -> None:
    last = save(tmp_path, 1000, time=50)
    save(tmp_path, 900, time=60)
    write_last_checkpoint(tmp_path, '/another/machine/iter_1000.pth')
    assert newest_valid(config(tmp_path))[0] == str(last)


@pytest.mark.parametrize('elsewhere', [False, True])
def test_a_copied_run_resumes_from_its_own_files(elsewhere: bool, tmp_path: Path) -> None:
    settings: dict[str, object] = {}
    folders = {name: tmp_path / name for name in ('original', 'copied')}
    if elsewhere:
        settings['default_hooks'] = {'checkpoint': {'out_dir': str(tmp_path / 'out')}}
        folders = {name: tmp_path / 'out' / name for name in folders}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (tmp_path / name).mkdir(exist_ok=True)
        write_last_checkpoint(tmp_path / name, folders['original'] / 'iter_10.pth')
        save(folder, 10)
    assert newest_valid(config(tmp_path / 'copied', **settings))[0] == str(folders['copied'] / 'iter_10.pth')


def small_checkpoint(as_zip: bool) -> bytes:
    buffer = io.BytesIO()
    history = HistoryBuffer([0.5, 0.25], [1, 1])
    state = {
        'meta': {'epoch': 0, 'iter': 1, 'seed': 7, 'dataset_meta': {'classes': ('a', 'b')}},
        'state_dict': {'weight': torch.arange(3.0)},
        'message_hub': {'log_scalars': {'loss': history}, 'runtime_info': {'step': np.int64(1)}},
        'optimizer': {'state': {0: {'step': torch.tensor(1.0)}}, 'param_groups': [{'lr': 0.1}]},
    }
    torch.save(state, buffer, _use_new_zipfile_serialization=as_zip)
    return buffer.getvalue()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('as_zip', [True, False])
def test_a_wrong_bit_anywhere_is_harmless_or_reported_in_one_line(as_zip: bool, tmp_path: Path) -> None:
    """In headers, pickled data or the zip directory: no other error may end the search."""
    data, path, draw = small_checkpoint(as_zip), tmp_path / 'x.pth', random.Random(0)
    assert zipfile.is_zipfile(io.BytesIO(data)) == as_zip
    messages = []
    for position in (*range(0, len(data), 7), *range(len(data) - 120, len(data))):
        wrong = bytearray(data)
        wrong[position] ^= 1 << draw.randrange(8)
        path.write_bytes(wrong)
        for read in (read_state, read_file):
            try:
                read(str(path))
            except UserError as error:
                messages.append(str(error))
    assert len(messages) > len(data) // 16
    assert not [line for line in messages if '\n' in line]


def test_best_and_published_files_are_not_resumed(tmp_path: Path) -> None:
    good = save(tmp_path, 10)
    for name in ('best_acc_iter_20.pth', 'iter_20-0a1b2c3d.pth', 'other.pth', '.iter_20.pth.7.part'):
        (tmp_path / name).write_bytes(checkpoint(20))
    assert newest_valid(config(tmp_path))[0] == str(good)


def test_the_hook_may_save_in_another_folder_with_other_names(tmp_path: Path) -> None:
    work, elsewhere = tmp_path / 'run', tmp_path / 'elsewhere' / 'run'
    work.mkdir()
    elsewhere.mkdir(parents=True)
    (elsewhere / 'step-5.pth').write_bytes(checkpoint(5))
    hook = {'type': 'CheckpointHook', 'out_dir': str(tmp_path / 'elsewhere'), 'filename_tmpl': 'step-{}.pth'}
    cfg = config(work, default_hooks={'checkpoint': hook})
    assert newest_valid(cfg)[0] == str(elsewhere / 'step-5.pth')


@pytest.mark.parametrize('own', [None, 7, 3])
def test_a_resumed_run_keeps_its_seed(
    own: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, 10)
    cfg = config(tmp_path, randomness={'seed': own, 'deterministic': True})
    assert choose_checkpoint(cfg, 'auto') == str(path)
    assert cfg.load_from is None
    assert cfg.randomness == {'seed': 7, 'deterministic': True}
    assert ('with its seed 7 instead of 3' in capsys.readouterr().out) == (own == 3)
