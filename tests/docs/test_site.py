"""The site: it builds without a warning, every link in it leads somewhere, and nothing comes from outside."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown import markdown

from tests.conftest import ROOT
from tools.site_hooks import LINK

# Attributes that a browser follows by itself, without a click.
LOADED = {
    'audio': 'src', 'embed': 'src', 'iframe': 'src', 'img': 'src', 'link': 'href', 'object': 'data',
    'script': 'src', 'source': 'src', 'video': 'src',
}  # fmt: skip
STYLE_ADDRESS = re.compile(r'(?:url\(|@import)\s*["\']?(?:https?:)?//')


class PageParts(HTMLParser):
    """What a page links to, what it loads, and the names in it that links can lead to."""

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
def pages(build: tuple[Path, subprocess.CompletedProcess[str]]) -> dict[Path, PageParts]:
    # 404.html is shown at any address, so its links are absolute.
    files = [file for file in build[0].rglob('*.html') if file.name != '404.html']
    return {file: PageParts(file.read_text()) for file in files}


def test_the_site_builds_without_a_warning(build: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = build
    assert done.returncode == 0, done.stderr[-4000:]
    assert 'WARNING' not in done.stderr, done.stderr[-4000:]
    assert (folder / 'index.html').is_file()


def test_every_page_of_docs_is_in_the_navigation() -> None:
    nav = (ROOT / 'mkdocs.yml').read_text().split('\nnav:\n')[1].split('\n\n')[0]
    listed = re.findall(r'- (\S+\.md)$', nav, re.MULTILINE)
    there = [str(file.relative_to(ROOT / 'docs')) for file in (ROOT / 'docs').rglob('*.md')]
    assert sorted(listed) == sorted(there), 'a page takes one line under `nav` in mkdocs.yml'


def test_every_link_leads_to_a_page_and_a_place_on_it(pages: dict[Path, PageParts]) -> None:
    assert len(pages) > 20
    lost = []
    for page, parts in pages.items():
        for link in [*parts.links, *parts.loaded]:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            known = pages[target].names if target in pages else set()
            if not target.exists() or (address.fragment and unquote(address.fragment) not in known):
                lost.append(f'{page.name}: {link}')
    assert not lost, lost


def test_pages_load_nothing_from_outside(
    build: tuple[Path, subprocess.CompletedProcess[str]], pages: dict[Path, PageParts]
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


def test_files_of_the_repository_are_shown(pages: dict[Path, PageParts]) -> None:
    """A link to code leads to a page with that code."""
    idea = next(page for page in pages if page.name == 'idea.html')
    assert 'source/inline/ops/inline_attention.py.html' in pages[idea].links
    shown = (idea.parent / 'source/inline/ops/inline_attention.py.html').read_text()
    assert 'baddbmm' in shown


def test_the_api_has_signatures_and_arguments(pages: dict[Path, PageParts]) -> None:
    ops = next(page for page in pages if page.parent.name == 'api' and page.name == 'ops.html')
    assert 'inline.ops.inline_attention.inline_attention' in pages[ops].names
    text = ops.read_text()
    assert 'Queries (B, heads, M, d).' in text
    assert ':func:' not in text
    # A name with underscores, which other such names are hidden for: it is how the class is used.
    inference = next(page for page in pages if page.parent.name == 'api' and page.name == 'inference.html')
    assert 'inline.inference.model.InLineModel.__call__' in pages[inference].names
    assert 'Pixels that neighbouring tiles share at least' in inference.read_text()


@pytest.mark.parametrize('name', ['README.md', 'CONTRIBUTING.md'])
def test_links_of_the_pages_outside_docs_lead_to_files(name: str) -> None:
    text = (ROOT / name).read_text()
    links = [match['path'] for match in LINK.finditer(text)]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
    headings = PageParts(markdown(text, extensions=['toc', 'fenced_code'])).names
    own = re.findall(r'\]\(#([^)]+)\)', text)
    assert set(own) <= headings


def test_a_lost_link_is_noticed() -> None:
    parts = PageParts('<a href="gone.html#there">x</a><h2 id="here"></h2><script src="//cdn.example/x.js">')
    assert parts.links == ['gone.html#there']
    assert parts.names == {'here'}
    assert parts.loaded == ['//cdn.example/x.js']
