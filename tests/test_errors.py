"""What a command line with a mistake is answered."""

import pytest

from inline.errors import OneLineParser, UserError


def parser() -> OneLineParser:
    made = OneLineParser()
    made.add_argument('config')
    made.add_argument('--out', required=True)
    made.add_argument('--score-thr', type=float)
    return made


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
def test_what_was_written_is_told_before_what_was_not(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as told:
        parser().parse_args(words)
    assert str(told.value) == expected


def test_a_flag_of_a_command_is_told_like_one_of_the_tool() -> None:
    made = OneLineParser()
    made.add_subparsers(dest='command').add_parser('run').add_argument('--table')
    assert made.parse_args(['run', '--table', 'x']).table == 'x'
    with pytest.raises(UserError, match=r'^unrecognized argument --tabl, did you mean --table\?$'):
        made.parse_args(['run', '--tabl', 'x'])


def test_a_right_line_is_read() -> None:
    assert vars(parser().parse_args(['a.py', '--out', 'x'])) == {
        'config': 'a.py',
        'out': 'x',
        'score_thr': None,
    }
