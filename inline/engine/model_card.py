"""The README.md beside published weights: what they are, how to load them, and which figures are known.

Figures come from ``configs/*/metafile.yml``: measured and expected ones stay apart.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from inline.cards import attention_tags, tell_attention
from inline.engine.runs import ROOT

PIPELINES = {
    'mmpretrain': 'image-classification',
    'mmdet': 'object-detection',
    'mmseg': 'image-segmentation',
}
_SHOWN_CLASSES = 10
_CONFIGS = ROOT / 'configs'


def find_entry(name: str, configs: Path = _CONFIGS) -> dict[str, Any] | None:
    """What a metafile says of a config, named with or without its batch and data set."""
    for path in sorted(configs.glob('*/metafile.yml')):
        for entry in yaml.safe_load(path.read_text())['Models']:
            if entry['Name'] == name or _released_name(entry['Name']) == name:
                return dict(entry)
    return None


def render_card(
    *,
    name: str,
    file: str,
    digest: str,
    parameters: int,
    weights: str,
    meta: Mapping[str, Any],
    entry: Mapping[str, Any] | None,
    plain: bool,
    attention: Mapping[str, int],
    license_id: str | None = None,
) -> str:
    """The card as Markdown with YAML front matter.

    Args:
        name: The config's name.
        file: The weights' file beside the card.
        digest: sha256 of that file.
        parameters: How many numbers it holds.
        weights: In words, which of the checkpoint's weights these are.
        meta: What was kept of the checkpoint's meta.
        entry: Of the metafile, None if there is none.
        plain: Whether ``InLineBackbone.from_pretrained`` can load the folder.
        attention: How many blocks have which, see :mod:`inline.cards`; empty if that cannot be told.
        license_id: As the Hugging Face Hub names licences; None says nothing.
    """
    front: dict[str, Any] = {} if license_id is None else {'license': license_id}
    front |= {'library_name': 'inline-attention', 'tags': attention_tags(attention)}
    pipeline = next(
        (task for box, task in PIPELINES.items() if f"default_scope = '{box}'" in meta.get('cfg', '')), None
    )
    if pipeline is not None:
        front['pipeline_tag'] = pipeline
    sections = [
        f'---\n{yaml.safe_dump(front, sort_keys=False)}---\n# {name}',
        *([tell_attention(attention)] if attention else []),
        '\n'.join(_facts(file, digest, parameters, weights, meta, entry)),
        '## Figures',
        *_figures(entry),
        '## Load it',
        _usage(name, file, entry, plain),
    ]
    return '\n\n'.join(sections) + '\n'


def _facts(
    file: str,
    digest: str,
    parameters: int,
    weights: str,
    meta: Mapping[str, Any],
    entry: Mapping[str, Any] | None,
) -> list[str]:
    facts = [
        f'- file: `{file}`, sha256 `{digest}`',
        f'- {parameters / 1e6:.2f} M parameters; the weights are {weights}',
    ]
    if 'iter' in meta:
        epochs = f' ({meta["epoch"]} epochs)' if meta.get('epoch') else ''
        facts.append(f'- trained for {meta["iter"]} iterations{epochs}')
    if entry is not None:
        facts.append(f'- config: `{entry["Config"]}`, for {entry["Metadata"]["Training Data"]}')
    classes = (meta.get('dataset_meta') or {}).get('classes')
    if classes:
        more = f' and {len(classes) - _SHOWN_CLASSES} more' if len(classes) > _SHOWN_CLASSES else ''
        facts.append(f'- {len(classes)} classes: {", ".join(map(str, classes[:_SHOWN_CLASSES]))}{more}')
    return facts


def _figures(entry: Mapping[str, Any] | None) -> list[str]:
    measured = (entry or {}).get('Results') or []
    expected = dict(((entry or {}).get('Metadata') or {}).get('Expected') or {})
    source = expected.pop('Source', None)
    parts = []
    for result in measured:
        parts.append(
            f'Measured with this code and config on {result["Dataset"]}, in the run that '
            f'`results/measured/` names, which need not be the run of this file:\n\n'
            + _table(result['Metrics'])
        )
    if expected:
        parts.append(f'Expected of this config (source: {source}), not measured here:\n\n' + _table(expected))
    if not measured:
        parts.append('No figure of this file was measured for this card.')
    return parts


def _table(figures: Mapping[str, Any]) -> str:
    lines = ['| metric | value |', '|---|---|', *(f'| {key} | {value} |' for key, value in figures.items())]
    return '\n'.join(lines)


def _usage(name: str, file: str, entry: Mapping[str, Any] | None, plain: bool) -> str:
    if entry is not None:
        config = entry['Config']
    else:
        known = sorted(_CONFIGS.rglob(f'{name}.py'))
        config = known[0].relative_to(_CONFIGS.parent) if known else f'{name}.py'
    lines = ['In a clone of the repository:', '', '```bash']
    lines += [f'python tools/test.py {config} PATH_OF_THIS_FOLDER/{file}', '```']
    if plain:
        lines += [
            '',
            '```python',
            'from inline import InLineBackbone',
            '',
            "model = InLineBackbone.from_pretrained('.')  # this folder, or USER/MODEL on the Hub",
            '```',
        ]
    return '\n'.join(lines)


def _released_name(config: str) -> str | None:
    """inline-swin-base-384 for inline-swin-base_8xb64_in1k-384px; None where it is no classifier's."""
    if '_in1k' not in config:
        return None
    return config.split('_')[0] + ('-384' if config.endswith('-384px') else '')
