"""Files that belong to the project but are not Python modules: configs, published numbers, tools."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
# Folder in which wheels of OpenMMLab packages contain these files; MIM and MMEngine look for them there.
_MIM = _PACKAGE / '.mim'
IS_CLONE = (_PACKAGE.parent / 'model-index.yml').is_file()
# Contains configs/, tools/, results/paper/ and model-index.yml: the repository, or a folder of the wheel.
ROOT = _PACKAGE.parent if IS_CLONE else _MIM
# Folder of the tools in the commands that messages show.
TOOLS = Path('tools') if IS_CLONE else ROOT / 'tools'
CONFIGS = ROOT / 'configs'
PAPER_RESULTS = ROOT / 'results' / 'paper'
# Results are written to the repository, but never to an installed package.
MEASURED_RESULTS = (ROOT if IS_CLONE else Path()) / 'results' / 'measured'


def format_tool(tool: str, subcommand: str) -> str:
    """Return the start of a command in a message: ``python tools/TOOL.py`` in a clone, else ``inline …``."""
    return f'python {TOOLS}/{tool}.py' if IS_CLONE else f'inline {subcommand}'
