"""Every command in the documentation is run by a test or marked with what it needs; code blocks run."""

import fcntl
import fnmatch
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, free_port
from tests.docs import page_files
from tests.docs.command_table import ELSEWHERE, FIRST, RUN, START
from tests.docs.pages import NEEDS, PAGES, Block, Command, read_blocks, read_commands, split_commands
from tests.docs.runner import parse, run_in_fork

COMMANDS = [command for page in PAGES for command in read_commands(page)]
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
PYTHON = {'python', 'python3', '.venv/bin/python'}
FOLDERS = {'benchmarks', 'configs', 'docs', 'inline', 'results', 'tests', 'tools'}
# Placeholders in a command: CONFIG, NODE_RANK, best_….pth.
PLACEHOLDER = re.compile(r'\b[A-Z][A-Z_]+\b|…')
SHORTENED = ('digits', '_base_/digits')
# The tool that a launcher starts, and how its arguments follow from those of the launcher.
LAUNCHERS = {
    'tools/dist_train.sh': ('tools/train.py', lambda words: [words[0], *words[2:]]),
    'tools/dist_test.sh': ('tools/test.py', lambda words: [*words[:2], *words[3:]]),
    'tools/slurm_train.sh': ('tools/train.py', lambda words: [words[2], *words[4:]]),
    'tools/slurm_test.sh': ('tools/test.py', lambda words: words[2:]),
}
Result = tuple[int, str]


def tool_words(command: Command) -> list[str] | None:
    """Return the Python tool that a command runs with its arguments, or None."""
    words = list(command.words)
    if words[0] in PYTHON:
        words = words[1:]
    if words[0] in LAUNCHERS:
        tool, rest = LAUNCHERS[words[0]]
        return [tool, *rest(words[1:])]
    if words[0] == 'inline':
        return ['-m', 'inline.commands.main', *words[1:]]
    is_module = words[0] == '-m' and words[1].split('.')[0] in FOLDERS
    return words if is_module or words[0].startswith(('tools/', 'benchmarks/')) else None


def find(table: dict, command: Command) -> str | None:
    """Return the first pattern of the table that matches the command."""
    return next((pattern for pattern in table if fnmatch.fnmatchcase(command.text, pattern)), None)


# A module without arguments has nothing to parse.
TOOLS = list(
    dict.fromkeys(
        tuple(words)
        for command in COMMANDS
        if (words := tool_words(command)) is not None and words[2 if words[0] == '-m' else 0 :]
    )
)
TO_RUN = list(dict.fromkeys(c.text for c in COMMANDS if not c.needs and find(RUN, c)))
TO_START = list(dict.fromkeys(c.text for c in COMMANDS if not c.needs and find(START, c)))
CODE: dict[str, list[Block]] = {}
for _block in BLOCKS:
    if _block.language == 'python' and not _block.needs:
        CODE.setdefault(_block.page, []).append(_block)


@pytest.fixture(scope='module')
def small_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository whose digits configs train for two steps on two images."""
    folder = tmp_path_factory.mktemp('repository')
    shutil.copytree(ROOT / 'configs', folder / 'configs')
    for name in ('tools', 'benchmarks'):
        (folder / name).symlink_to(ROOT / name)
    shortened = (sorted((folder / 'configs').glob(f'{name}/*.py')) for name in SHORTENED)
    for config in itertools.chain(*shortened):
        text = re.sub(r'\b(max_iters|val_interval|batch_size)=\d+', r'\1=2', config.read_text())
        text = text.replace('num_workers=1', 'num_workers=0').replace('workers=True', 'workers=False')
        config.write_text(text)
    return folder


@pytest.fixture(scope='module')
def results(
    small_repository: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> dict[str, Result]:
    """Exit code and output of every job, by command or page.

    Parallel test workers share the results: the first one runs all jobs, the others wait.
    """
    if worker_id == 'master':
        return run_all_jobs(small_repository)
    answers = tmp_path_factory.getbasetemp().parent / 'commands_of_pages.json'
    with answers.with_suffix('.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            answers.write_text(json.dumps(run_all_jobs(small_repository)))
    return json.loads(answers.read_text())


def run_all_jobs(small_repository: Path) -> dict[str, Result]:
    jobs: dict[str, dict] = {}
    for words in TOOLS:
        substituted = [re.sub(r'^(NPROC|N|Y|X)$', '2', word) for word in words]
        jobs[f'parse {shlex.join(words)}'] = {'kind': 'parse', 'what': substituted, 'folder': str(ROOT)}
    here = {'folder': str(small_repository)}
    jobs['files'] = {'kind': 'files', 'what': None, **here}
    for text in FIRST:
        jobs[f'run {text}'] = {'kind': 'run', 'what': fill_in(text.split()), **here}
    for text in TO_RUN:
        command = Command('', 0, (), split_commands(text)[0])
        words = [*(tool_words(command) or ()), *RUN[str(find(RUN, command))].split()]
        jobs[f'run {text}'] = {'kind': 'run', 'what': fill_in(words), **here}
    for text in TO_START:
        command = Command('', 0, (), split_commands(text)[0])
        port = free_port()
        more, sign = (words.format(port=port) for words in START[str(find(START, command))])
        words = tool_words(command) or ['-m', f'{command.words[0]}.main', *command.words[1:]]
        jobs[f'start {text}'] = {'kind': 'start', 'what': [fill_in([*words, *more.split()]), sign], **here}
    for page, blocks in CODE.items():
        code = [(f'{page}, block of line {block.line}', block.text) for block in blocks]
        jobs[f'code {page}'] = {'kind': 'code', 'what': code, **here}
    asked, answered = small_repository / 'jobs.json', small_repository / 'results.json'
    asked.write_text(json.dumps(list(jobs.values())))
    done = subprocess.run(
        [sys.executable, '-m', 'tests.docs.runner', asked, answered],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(jobs, json.loads(answered.read_text()), strict=True))


def fill_in(words: Sequence[str]) -> list[str]:
    """Replace placeholders by the files of the small repository, where runs have two steps."""
    models = {'CONFIG': page_files.CONFIG, 'CHECKPOINT': page_files.CHECKPOINT}
    trained = re.compile(r'^(work_dirs/(?!demo/).*)iter_\d+\.pth$')
    return [models.get(word, trained.sub(r'\1iter_2.pth', word)) for word in words]


@pytest.mark.parametrize('command', COMMANDS, ids=str)
def test_every_command_is_tested_or_marked(command: Command) -> None:
    if command.needs:
        assert set(command.needs) <= set(NEEDS), f'{command} needs {command.needs}: choose of {NEEDS}'
        return
    assert any(find(table, command) for table in (RUN, START, ELSEWHERE)), (
        f'{command}\nis run by no test: add it to a table in tests/docs/command_table.py, or put '
        f'<!-- needs: … --> above its block, with one or more of {", ".join(NEEDS)}'
    )


@pytest.mark.parametrize('command', COMMANDS, ids=str)
def test_files_in_commands_exist(command: Command) -> None:
    for word in command.words:
        if word.split('/')[0] in FOLDERS and '/' in word and not PLACEHOLDER.search(word):
            assert (ROOT / word).exists(), f'{command}\nnames {word}, which does not exist'


@pytest.mark.slow
@pytest.mark.parametrize('words', TOOLS, ids=shlex.join)
def test_tool_accepts_documented_arguments(words: tuple[str, ...], results: dict[str, Result]) -> None:
    code, output = results[f'parse {shlex.join(words)}']
    assert code == 0, f'{shlex.join(words)}\nis refused by the tool: {output[-2000:]}'


@pytest.mark.slow
@pytest.mark.parametrize('job', ['files', *(f'run {text}' for text in [*FIRST, *TO_RUN])])
def test_command_runs(job: str, results: dict[str, Result]) -> None:
    code, output = results[job]
    assert code == 0, f'{job}\nended with {code}: {output[-3000:]}'


@pytest.mark.slow
@pytest.mark.parametrize('text', TO_START)
def test_server_starts(text: str, results: dict[str, Result]) -> None:
    code, output = results[f'start {text}']
    assert code == 0, f'{text}\nsaid: {output[-3000:]}'


@pytest.mark.slow
@pytest.mark.parametrize('page', CODE)
def test_code_blocks_run_in_order(page: str, results: dict[str, Result]) -> None:
    code, output = results[f'code {page}']
    assert code == 0, output[-3000:]


@pytest.mark.parametrize('pattern', [*RUN, *START, *ELSEWHERE])
def test_every_table_entry_is_used(pattern: str) -> None:
    assert any(not c.needs and fnmatch.fnmatchcase(c.text, pattern) for c in COMMANDS), (
        f'no page has a command like {pattern!r}: remove its line from tests/docs/command_table.py'
    )


@pytest.mark.parametrize('node', sorted({node for nodes in ELSEWHERE.values() for node in nodes}))
def test_referenced_tests_exist(node: str) -> None:
    file, _, name = node.partition('::')
    assert re.search(rf'^def {name}\(', (ROOT / file).read_text(), re.MULTILINE), f'{node} is not there'


def test_documented_make_targets_exist() -> None:
    targets = {command.words[1] for command in COMMANDS if command.words[0] == 'make'}
    assert {'demo', 'test'} <= targets
    for target in targets:
        done = subprocess.run(
            ['make', '--dry-run', target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert 'pytest' in subprocess.check_output(['make', '--dry-run', 'test'], cwd=ROOT, text=True)


def test_unknown_flag_is_detected() -> None:
    code, output = run_in_fork(lambda: parse(['tools/make_digit_scenes.py', '--no-such-flag']), ROOT)
    assert code == 2
    assert 'error: unrecognized argument --no-such-flag' in output
    assert run_in_fork(lambda: parse(['tools/make_digit_scenes.py', '--seed', '1']), ROOT) == (0, '')


def test_commands_are_parsed_like_a_shell(tmp_path: Path) -> None:
    page = tmp_path / 'page.md'
    page.write_text(
        '<!-- needs: gpus, data -->\n\n```bash\n'
        'A=1 tools/a.sh CONFIG [flags of b] \\\n    --x "1 2"   # why\n```\n'
        'Text.\n\n```bash\nuntil tools/c.py; do [ $? = 75 ] || break; done\n```\n'
    )
    first, *rest = read_commands(page)
    assert first == Command('page.md', 4, ('gpus', 'data'), ('tools/a.sh', 'CONFIG', '--x', '1 2'))
    assert rest == [Command('page.md', 10, (), ('tools/c.py',))]
