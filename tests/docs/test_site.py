"""The documentation site builds without warnings, has no broken links and loads nothing external."""

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown import markdown

from inline.apis.inference import InLineModel
from tests.conftest import ROOT
from tools.site_hooks import LINK

# Attributes that make a browser load a resource.
LOADED = {
    'audio': 'src', 'embed': 'src', 'iframe': 'src', 'img': 'src', 'link': 'href', 'object': 'data',
    'script': 'src', 'source': 'src', 'video': 'src',
}  # fmt: skip
STYLE_ADDRESS = re.compile(r'(?:url\(|@import)\s*["\']?(?:https?:)?//')


class ParsedPage(HTMLParser):
    """Links, loaded resources and anchors of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.names |= {values[name] for name in ('id', 'name') if name in values}
        if tag == 'a' and 'href' in values:
            self.links.append(values['href'])
        if tag in LOADED and LOADED[tag] in values and values.get('rel') != 'canonical':
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope='module')
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp('site')
    done = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', folder],
        cwd=ROOT,
        env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
        capture_output=True,
        text=True,
        check=False,
    )
    return folder, done


@pytest.fixture(scope='module')
def pages(build: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[Path, ParsedPage]:
    # 404.html is served for any address, so its links are absolute.
    files = [file for file in build[0].rglob('*.html') if file.name != '404.html']
    return {file: ParsedPage(file.read_text()) for file in files}


@pytest.mark.slow
def test_site_builds_without_warnings(build: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = build
    assert done.returncode == 0, done.stderr[-4000:]
    assert 'WARNING' not in done.stderr, done.stderr[-4000:]
    assert (folder / 'index.html').is_file()


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / 'mkdocs.yml').read_text().split('\nnav:\n')[1].split('\n\n')[0]
    listed = re.findall(r'- (\S+\.md)$', nav, re.MULTILINE)
    docs = ROOT / 'docs'
    notebooks = [file.with_suffix('.md') for file in docs.rglob('*.ipynb')]
    there = [str(file.relative_to(docs)) for file in [*docs.rglob('*.md'), *notebooks]]
    assert sorted(listed) == sorted(there), 'list every page under `nav` in mkdocs.yml'


@pytest.mark.slow
def test_links_and_anchors_exist(pages: dict[Path, ParsedPage]) -> None:
    assert len(pages) > 20
    broken = []
    for page, parts in pages.items():
        for link in [*parts.links, *parts.loaded]:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            known = pages[target].names if target in pages else set()
            if not target.exists() or (address.fragment and unquote(address.fragment) not in known):
                broken.append(f'{page.name}: {link}')
    assert not broken, broken


@pytest.mark.slow
def test_pages_load_no_external_resources(
    build: tuple[Path, subprocess.CompletedProcess[str]], pages: dict[Path, ParsedPage]
) -> None:
    foreign = {
        f'{page.name}: {address}'
        for page, parts in pages.items()
        for address in parts.loaded
        if urlsplit(address).netloc
    }
    assert not foreign
    styles = list(build[0].rglob('*.css'))
    assert styles
    assert not [style.name for style in styles if STYLE_ADDRESS.search(style.read_text())]
    assert not [page.name for page in pages if STYLE_ADDRESS.search(page.read_text())]


@pytest.mark.slow
def test_linked_source_files_are_shown(pages: dict[Path, ParsedPage]) -> None:
    """A link to a source file leads to a page that shows it."""
    method = next(page for page in pages if page.name == 'method.html')
    assert 'source/inline/ops/inline_attention.py.html' in pages[method].links
    shown = (method.parent / 'source/inline/ops/inline_attention.py.html').read_text()
    assert 'baddbmm' in shown


@pytest.mark.slow
def test_notebook_is_a_page_with_its_outputs(pages: dict[Path, ParsedPage]) -> None:
    tutorial = next(page for page in pages if page.name == 'tutorial.html')
    text = tutorial.read_text()
    assert 'accuracy 11% before' in text
    assert [address for address in pages[tutorial].loaded if address.startswith('data:image/png;base64,')]
    assert (tutorial.parent / 'tutorial.ipynb').is_file()


@pytest.mark.slow
def test_api_pages_have_signatures_and_arguments(pages: dict[Path, ParsedPage]) -> None:
    ops = next(page for page in pages if page.parent.name == 'api' and page.name == 'ops.html')
    assert 'inline.ops.inline_attention.inline_attention' in pages[ops].names
    text = ops.read_text()
    assert 'Queries (B, heads, M, d).' in text
    assert ':func:' not in text
    # __call__ is shown although other special methods are hidden.
    inference = next(page for page in pages if page.parent.name == 'api' and page.name == 'inference.html')
    assert 'inline.apis.inference.InLineModel.__call__' in pages[inference].names
    documented = re.search(r'^\s*overlap: (.+?)\.', str(InLineModel.__call__.__doc__), re.MULTILINE)
    assert documented
    assert documented[1] in inference.read_text()


def test_documented_members_exist() -> None:
    """The site leaves out members that do not exist, without a warning."""
    listed, missing = 0, []
    for page in sorted((ROOT / 'docs' / 'api').glob('*.md')):
        for module, members in re.findall(
            r'^::: (\S+)\n(?: +.*\n)*? +members: \[(.+)\]$', page.read_text(), re.M
        ):
            defined = importlib.import_module(module)
            for name in members.split(', '):
                listed += 1
                if getattr(getattr(defined, name, None), '__module__', None) != module:
                    missing.append(f'{page.name}: {module}.{name}')
    assert listed > 20
    assert not missing


@pytest.mark.parametrize('name', ['README.md', 'CONTRIBUTING.md'])
def test_links_of_top_level_pages_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [match['path'] for match in LINK.finditer(text)]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
    headings = ParsedPage(markdown(text, extensions=['toc', 'fenced_code'])).names
    own = re.findall(r'\]\(#([^)]+)\)', text)
    assert set(own) <= headings


def test_parsed_page_finds_links_anchors_and_resources() -> None:
    parts = ParsedPage('<a href="gone.html#there">x</a><h2 id="here"></h2><script src="//cdn.example/x.js">')
    assert parts.links == ['gone.html#there']
    assert parts.names == {'here'}
    assert parts.loaded == ['//cdn.example/x.js']
