"""MkDocs hooks (see mkdocs.yml): add the files of the repository that pages link to.

Pages link to code, tables and configs by relative paths, which also work in the repository. The site contains
only docs/, so every linked file outside of docs/ becomes a generated page below source/.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, SOURCE = PurePosixPath('docs'), PurePosixPath('source')
LINK = re.compile(r'(?<=\]\()(?P<path>(?![a-z]+:)[^)\s#]+)(?=[)#])')
NEEDS = re.compile(r'^<!-- needs: (?P<names>[a-z, ]+) -->$', re.MULTILINE)
REQUIREMENTS = {
    'data': 'data that is not in the repository',
    'gpus': 'GPUs',
    'network': 'network access',
    'slurm': 'SLURM',
}
LANGUAGES = {'.py': 'python', '.sh': 'bash', '.yml': 'yaml', '.json': 'json'}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each linked file or folder outside docs/, including those that such pages link to."""
    pending = {
        path
        for file in files.documentation_pages()
        for path in linked_paths(file.content_string, DOCS / file.src_uri)
    }
    done: set[PurePosixPath] = set()
    while pending - done:
        path = min(pending - done)
        text = render_source(path)
        files.append(File.generated(config, source_page(path), content=relink(text, path, source_page(path))))
        done.add(path)
        pending |= linked_paths(text, path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links out of docs/ to the pages below source/, and show the requirements of commands."""
    uri = page.file.src_uri
    if not uri.startswith(f'{SOURCE}/'):
        markdown = relink(markdown, DOCS / uri, uri)
    return NEEDS.sub(lambda match: render_requirements(match['names']), markdown)


def render_requirements(names: str) -> str:
    text = ' and '.join(REQUIREMENTS[name] for name in names.replace(',', ' ').split())
    return f'<p class="needs">needs {text}</p>\n'


def linked_paths(text: str, path: PurePosixPath) -> set[PurePosixPath]:
    """Return the existing files and folders outside docs/ that the page at `path` links to."""
    targets = (resolve(path, match['path']) for match in LINK.finditer(text))
    return {target for target in targets if is_outside_docs(target)}


def relink(text: str, path: PurePosixPath, uri: str) -> str:
    """Return the text of the repository's file `path` with links adapted to its address `uri` on the site."""

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


def render_source(path: PurePosixPath) -> str:
    """Return a page that shows a file of the repository, or the README and file names of a folder."""
    file = ROOT / path
    if file.is_dir():
        # Only names: links would add all files of the folder to the site.
        readme = file / 'README.md'
        title = readme.read_text() if readme.is_file() else f'# {path}\n'
        names = ''.join(f'- `{path}/{child.name}`\n' for child in sorted(file.iterdir()))
        body = f'{title}\nFiles:\n\n{names}'
    elif file.suffix == '.md':
        body = file.read_text()
    else:
        body = f'# `{path}`\n\n````{LANGUAGES.get(file.suffix, "text")}\n{file.read_text()}\n````\n'
    return f'---\ntitle: {path}\nsearch:\n  exclude: true\n---\n{body}'
