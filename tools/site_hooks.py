"""MkDocs hooks (see mkdocs.yml): add the files of the repository that pages link to, and notebooks.

Pages link to code, tables and configs by relative paths, which also work in the repository. The site contains
only docs/, so every linked file outside of docs/ becomes a generated page below source/. A notebook
NAME.ipynb in docs/ becomes the page NAME.md, with the outputs that are stored in it.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

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
    """Add a page per notebook, and per file or folder outside docs/ that pages link to, recursively."""
    for file in [file for file in files if file.src_uri.endswith('.ipynb')]:
        page = str(PurePosixPath(file.src_uri).with_suffix('.md'))
        files.append(File.generated(config, page, content=render_notebook(file.content_string)))
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


def render_notebook(text: str) -> str:
    """Return the cells of a notebook in JSON as Markdown: code, and below it the printed text and images."""
    parts = []
    for cell in json.loads(text)['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown':
            parts.append(source)
        else:
            parts.append(f'```python\n{source}\n```')
            parts += [_render_output(output) for output in cell['outputs']]
    return '\n\n'.join(parts) + '\n'


def _render_output(output: Mapping[str, Any]) -> str:
    if output['output_type'] == 'stream':
        return f'```text\n{"".join(output["text"]).rstrip()}\n```'
    return f'![output](data:image/png;base64,{"".join(output["data"]["image/png"]).strip()})'


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
