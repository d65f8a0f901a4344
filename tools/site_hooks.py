"""Hooks of mkdocs.yml: the site holds the files of the repository that pages link to.

A page links to code, tables and configs by relative paths, as a reader of the repository follows them. The
site has nothing outside docs/, so each file that is linked to becomes a page of it below source/.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, SOURCE = PurePosixPath('docs'), PurePosixPath('source')
LINK = re.compile(r'(?<=\]\()(?P<path>(?![a-z]+:)[^)\s#]+)(?=[)#])')
NEEDS = re.compile(r'^<!-- needs: (?P<what>[a-z, ]+) -->$', re.MULTILINE)
NEEDED = {
    'data': 'data that is not in the repository',
    'gpus': 'GPUs',
    'network': 'the network',
    'slurm': 'SLURM',
}
LANGUAGES = {'.py': 'python', '.sh': 'bash', '.yml': 'yaml', '.json': 'json'}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file or folder outside docs/ that a page links to, and for what those link to."""
    waiting = {
        path
        for file in files.documentation_pages()
        for path in linked_paths(file.content_string, DOCS / file.src_uri)
    }
    done: set[PurePosixPath] = set()
    while waiting - done:
        path = min(waiting - done)
        text = describe(path)
        files.append(File.generated(config, source_page(path), content=relink(text, path, source_page(path))))
        done.add(path)
        waiting |= linked_paths(text, path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Send links that leave docs/ to the pages below source/, and show what a command needs."""
    uri = page.file.src_uri
    if not uri.startswith(f'{SOURCE}/'):
        markdown = relink(markdown, DOCS / uri, uri)
    return NEEDS.sub(lambda match: show_needs(match['what']), markdown)


def show_needs(what: str) -> str:
    told = ' and '.join(NEEDED[word] for word in what.replace(',', ' ').split())
    return f'<p class="needs">needs {told}</p>\n'


def linked_paths(text: str, path: PurePosixPath) -> set[PurePosixPath]:
    """What the page at `path` of the repository links to outside docs/, if it exists."""
    targets = (resolve(path, match['path']) for match in LINK.finditer(text))
    return {target for target in targets if is_outside_docs(target)}


def relink(text: str, path: PurePosixPath, uri: str) -> str:
    """The text of the repository's `path` with links that fit its place `uri` on the site."""

    def replace(match: re.Match[str]) -> str:
        target = resolve(path, match['path'])
        if is_outside_docs(target):
            return relative(source_page(target), uri)
        if target.is_relative_to(DOCS):
            return relative(str(target.relative_to(DOCS)), uri)
        return match['path']

    return LINK.sub(replace, text)


def resolve(page: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.parent / link))


def is_outside_docs(path: PurePosixPath) -> bool:
    return not path.is_relative_to(DOCS) and '..' not in path.parts and (ROOT / path).exists()


def source_page(path: PurePosixPath) -> str:
    return f'{SOURCE / path}.md'


def relative(target: str, page: str) -> str:
    return os.path.relpath(target, PurePosixPath(page).parent)


def describe(path: PurePosixPath) -> str:
    """A page that shows a file of the repository as it is, or the names in a folder."""
    file = ROOT / path
    kind: Callable[[PurePosixPath], str] = (
        _describe_folder if file.is_dir() else _describe_text if file.suffix != '.md' else _describe_page
    )
    return f'---\ntitle: {path}\nsearch:\n  exclude: true\n---\n{kind(path)}'


def _describe_folder(path: PurePosixPath) -> str:
    """Its README, and the names of its files; links to all of them would draw in whole trees."""
    files = sorted((ROOT / path).iterdir())
    readme = (
        (ROOT / path / 'README.md').read_text() if (ROOT / path / 'README.md').is_file() else f'# {path}\n'
    )
    return f'{readme}\nFiles:\n\n' + ''.join(f'- `{path}/{file.name}`\n' for file in files)


def _describe_text(path: PurePosixPath) -> str:
    file = ROOT / path
    return f'# `{path}`\n\n````{LANGUAGES.get(file.suffix, "text")}\n{file.read_text()}\n````\n'


def _describe_page(path: PurePosixPath) -> str:
    return (ROOT / path).read_text()
