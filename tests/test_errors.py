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
        # The beginning of a flag is enough, as everywhere in argparse.
        (['--ou', 'x'], 'the following arguments are required: config'),
        (['a.py', '--out', 'x', '--score-thr', 'high'], "argument --score-thr: invalid float value: 'high'"),
        (['a.py', '--out', 'x', '--more'], 'unrecognized arguments: --more'),
    ],
)
def test_what_was_written_is_told_before_what_was_not(words: list[str], expected: str) -> None:
    with pytest.raises(UserError) as told:
        parser().parse_args(words)
    assert str(told.value) == expected


def test_a_right_line_is_read() -> None:
    assert vars(parser().parse_args(['a.py', '--out', 'x'])) == {
        'config': 'a.py',
        'out': 'x',
        'score_thr': None,
    }
