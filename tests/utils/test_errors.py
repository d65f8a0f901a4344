"""Command-line errors, and user errors of several ranks."""

import os
import signal
import subprocess
import sys

import pytest

from inline.utils.errors import OneLineParser, UserError, printable
from tests.conftest import ROOT


def make_parser() -> OneLineParser:
    parser = OneLineParser()
    parser.add_argument('config')
    parser.add_argument('--out', required=True)
    parser.add_argument('--score-thr', type=float)
    return parser


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['a.py', '--outt', 'x'], 'unrecognized argument --outt, did you mean --out?'),
        (['a.py', '--zzz=3'], 'unrecognized argument --zzz'),
        (['a.py'], 'the following arguments are required: --out'),
        (['a.py', '--ou', 'x'], 'unrecognized argument --ou, did you mean --out?'),
        (['--out', 'x'], 'the following arguments are required: config'),
        (['a.py', '--out', 'x', '--score-thr', 'high'], "argument --score-thr: invalid float value: 'high'"),
        (['a.py', '--out', 'x', '--more'], 'unrecognized argument --more'),
        (['a.py', '--out', 'x', '--score', '1'], 'unrecognized argument --score, did you mean --score-thr?'),
        (['a.py', '--out', 'x', 'b.py'], 'unrecognized arguments: b.py'),
    ],
)
def test_misspelt_flag_is_reported_before_a_missing_flag(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as raised:
        make_parser().parse_args(words)
    assert str(raised.value) == expected


def test_misspelt_flag_of_a_subcommand_is_reported() -> None:
    parser = OneLineParser()
    parser.add_subparsers(dest='command').add_parser('run').add_argument('--table')
    assert parser.parse_args(['run', '--table', 'x']).table == 'x'
    with pytest.raises(UserError, match=r'^unrecognized argument --tabl, did you mean --table\?$'):
        parser.parse_args(['run', '--tabl', 'x'])


def test_valid_command_line_is_parsed() -> None:
    assert vars(make_parser().parse_args(['a.py', '--out', 'x'])) == {
        'config': 'a.py',
        'out': 'x',
        'score_thr': None,
    }


def test_messages_are_printable() -> None:
    assert printable('é – ok') == 'é – ok'
    assert printable('\x1b[2J\u202e\ud800\n') == '\\x1b[2J\\u202e\\ud800\\n'
    error = UserError('names:\n\ta\x1b]0;x\x07')
    assert str(error) == 'names:\n\ta\\x1b]0;x\\x07'
    assert str(UserError(str(error))) == str(error)


FAIL = """
from inline.engine.signals import stop_request
from inline.utils import errors
stop_request.listen()
errors.RANK_ZERO_SECONDS = {seconds}
with errors.exit_on_user_error():
    print('ready', flush=True)
    raise errors.UserError('wrong')
"""


@pytest.mark.parametrize('launcher', ['RANK', 'SLURM_PROCID'])
@pytest.mark.parametrize(
    ('rank', 'seconds', 'terminated', 'printed'),
    [
        ('0', 600, False, 'error: wrong\n'),
        # srun and the elastic agent end this rank when rank 0 has exited with the same error.
        ('1', 600, True, ''),
        # Rank 0 has no error, or starts even later.
        ('1', 0, False, 'error: rank 1: wrong\n'),
    ],
)
def test_user_error_of_all_ranks_is_printed_once(
    launcher: str, rank: str, seconds: int, terminated: bool, printed: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', FAIL.format(seconds=seconds)],
        env={**os.environ, 'PYTHONPATH': str(ROOT), launcher: rank},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == 'ready\n'
    if terminated:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=120)[1] == printed
    # Not that of a signal: srun reports the highest code of all ranks.
    assert process.returncode == 2
