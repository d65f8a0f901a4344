"""Command-line errors."""

import pytest

from inline.utils.errors import OneLineParser, UserError, printable


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
