"""Build steps that setup.cfg cannot express; all settings are there.

A wheel carries configs, metafiles, published numbers and tools in ``inline/.mim/``, where MIM and MMEngine
look for the files of a package. The long description is the README without links to files of the repository.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MIM_FILES = (
    'model-index.yml',
    'configs/**/*.py',
    'configs/*/metafile.yml',
    'results/paper/*.csv',
    'results/reference/*.csv',
    'tools/*.py',
    'tools/*.sh',
)
# Tools that only make sense in a clone.
DEVELOPMENT_TOOLS = {
    'make_metafiles.py',
    'make_model_table.py',
    'setup_env.sh',
    'site_docstrings.py',
    'site_hooks.py',
    'update_readme.py',
}
# A link or picture whose target is a file of the repository.
IMAGE = re.compile(r'^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n', re.MULTILINE)
LINK = re.compile(r'\[([^\]]*)\]\((?!https?:|#)[^)]*\)')


class BuildWithMimFiles(build_py):
    """Copy :data:`MIM_FILES` into the package that is built. An editable install reads them in the clone."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self.mim_files():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def mim_files(self) -> list[tuple[Path, Path]]:
        """Return the path in the repository and in the built package of every file."""
        folder = Path(self.build_lib, 'inline', '.mim')
        files = []
        for pattern in MIM_FILES:
            found = [path for path in sorted(ROOT.glob(pattern)) if path.name not in DEVELOPMENT_TOOLS]
            if not found:
                raise FileNotFoundError(f'{pattern} matches no file: MANIFEST.in must include it')
            files += [(path, folder / path.relative_to(ROOT)) for path in found]
        return files

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        files = [] if self.editable_mode else [str(target) for _, target in self.mim_files()]
        return [*super().get_outputs(include_bytecode), *files]


def long_description(readme: str) -> str:
    """Return the README for a page outside the repository: without pictures and relative links."""
    return LINK.sub(r'\1', IMAGE.sub('', readme))


if __name__ == '__main__':
    setup(
        cmdclass={'build_py': BuildWithMimFiles},
        long_description=long_description((ROOT / 'README.md').read_text()),
    )
