"""The command ``inline``: dispatch, help, version and messages; the tools are wrappers of its subcommands."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

from inline import __version__
from inline.commands import main as command_line
from inline.commands.main import COMMANDS, main
from inline.utils import extras
from tests.conftest import ROOT, run_tool

# Names of files in tools/ that differ from those of their subcommands.
TOOLS = {'convert': 'convert_checkpoint', 'flops': 'get_flops', 'prepare-data': 'prepare_data'}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run ``inline`` with these words in this process; return its exit code."""
    monkeypatch.setattr(sys, 'argv', ['/somewhere/bin/inline', *words])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_every_subcommand_has_a_module_and_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, '--help') == 0
    printed = capsys.readouterr().out
    files = {path.stem for path in (ROOT / 'inline' / 'commands').glob('*.py')} - {'__init__', 'main'}
    assert {command.module for command in COMMANDS.values()} == files
    for name, command in COMMANDS.items():
        assert callable(import_module(f'inline.commands.{command.module}').main)
        assert re.search(rf'^  {name} +{re.escape(command.summary)}$', printed, re.MULTILINE)
    assert set().union(*(command.extras for command in COMMANDS.values())) <= extras.EXTRAS.keys()


@pytest.mark.parametrize('name', COMMANDS)
def test_help_of_a_subcommand_names_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, name, '--help') == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f'usage: inline {name} ')
    assert len(printed.split('\n\n')[1].split()) > 4


@pytest.mark.parametrize('name', [name for name in COMMANDS if name != 'doctor'])
def test_tools_are_wrappers(name: str) -> None:
    text = (ROOT / 'tools' / f'{TOOLS.get(name, name)}.py').read_text()
    assert text.endswith(
        f"from inline.commands.main import run\n\nif __name__ == '__main__':\n    run('{name}')\n"
    )
    assert len(text.splitlines()) == 7


def test_a_tool_behaves_like_its_subcommand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes, messages and results are the same; only the usage names the tool."""
    for words in (['nowhere.py'], ['--shape', '1'], ['inline-pvt-nano_digits', '--shape', '64', '96']):
        done = run_tool('tools/get_flops.py', *words)
        assert call(monkeypatch, 'flops', *words) == done.returncode
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == (done.stdout, done.stderr)
    assert 'input 64×96' in done.stdout


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ([], 'a command is required: train, test, '),
        (['trian'], "unknown command 'trian': did you mean train?"),
        (['prepare_data'], "unknown command 'prepare_data': did you mean prepare-data?"),
        (['configs/x.py'], "unknown command 'configs/x.py': choose from train, "),
        (['train'], 'the following arguments are required: config'),
        (['train', '--epoch', '3'], 'unrecognized argument --epoch, did you mean --epochs?'),
        (
            ['flops', 'inline-pvt-mikro_digits'],
            'did you mean inline-pvt-nano_digits, inline-pvt-micro_digits?',
        ),
        (['doctor', 'all'], 'unrecognized arguments: all'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, list) else '',
)
def test_mistakes_are_one_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *words) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith('error: ')
    assert message in line
    assert printed.out == ''


def test_code_of_a_subcommand_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module('inline.commands.prepare_data')
    for code in (0, 1):
        monkeypatch.setattr(module, 'main', lambda code=code: code)
        assert call(monkeypatch, 'prepare-data', 'coco', 'x') == code


def test_missing_extras_are_named_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, 'find_spec', lambda name: None if name in ('mmdet', 'gradio') else name)
    monkeypatch.setattr(command_line, 'import_module', lambda name: pytest.fail(f'{name} was imported'))
    assert call(monkeypatch, 'serve') == 2
    expected = "inline serve needs mmdet, gradio: pip install 'inline-attention[openmmlab,serve]'"
    assert capsys.readouterr().err == f'error: {expected}\n'


@pytest.mark.parametrize('word', ['--help', '--version', 'trian'])
def test_the_command_itself_imports_neither_torch_nor_openmmlab(word: str) -> None:
    command = [sys.executable, '-X', 'importtime', '-m', 'inline.commands.main', word]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    imported = {line.split('|')[-1].strip() for line in done.stderr.splitlines() if '|' in line}
    assert 'inline.utils.errors' in imported
    assert not imported & {'torch', 'numpy', 'mmengine', 'mmcv', 'mmpretrain'}
    if word == '--version':
        assert done.stdout == f'inline {__version__}\n'
