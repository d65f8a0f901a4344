"""Model cards: the README.md next to published weights.

A card describes the attention of the blocks, how to load the weights, and known results.
Measured and expected results are listed separately.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from inline.models.mixers import MIXERS, AttentionMixer, InLineMixer

PAPER = '[arXiv 2412.06590](https://arxiv.org/abs/2412.06590)'
PIPELINES = {
    'mmpretrain': 'image-classification',
    'mmdet': 'object-detection',
    'mmseg': 'image-segmentation',
}
_MIXER_NAMES = {mixer: name for name, mixer in MIXERS.items()}
_MAX_CLASSES = 10
_PACKAGED_USAGE = """```python
import inline

model = inline.create_backbone('{name}', pretrained=True, num_classes={classes})
```

The name is accepted wherever weights are: `--pretrained {name}`, `init_cfg`, `InLineModel`."""


@dataclass(frozen=True)
class PublishedModelCard:
    """The content of a model card.

    Args:
        name: Name of the config.
        config: Path of the config in the repository.
        file: Name of the weight file next to the card.
        digest: sha256 of that file.
        parameters: Number of parameters in it.
        weights: Which weights of the checkpoint they are, in words.
        meta: The checkpoint's meta that is published.
        metafile_entry: The config's entry in ``configs/*/metafile.yml``, None if there is none.
        is_backbone: Whether ``InLineBackbone.from_pretrained`` can load the folder.
        attention: Number of blocks per attention, see :func:`count_attention`; empty if unknown.
        license_id: Licence as the Hugging Face Hub names it; None to state none.
        training: Facts about data and training, one sentence each.
        measured: Metrics of this file, measured by the tool that writes the card; empty if not measured.
        packaged: Whether the file is part of the package, where its name is enough to load it.
    """

    name: str
    config: str
    file: str
    digest: str
    parameters: int
    weights: str
    meta: Mapping[str, Any]
    metafile_entry: Mapping[str, Any] | None
    is_backbone: bool
    attention: Mapping[str, int]
    license_id: str | None = None
    training: Sequence[str] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    packaged: bool = False

    def render(self) -> str:
        """Return the card as Markdown with YAML front matter."""
        # Backbones are usable with torch alone.
        import yaml

        sections = [
            f'---\n{yaml.safe_dump(self._front_matter(), sort_keys=False)}---\n# {self.name}',
            *([describe_attention(self.attention)] if self.attention else []),
            '\n'.join(self._facts()),
            *(['## Training', '\n'.join(f'- {fact}' for fact in self.training)] if self.training else []),
            '## Results',
            *self._results(),
            '## Usage',
            self._usage(),
        ]
        return '\n\n'.join(sections) + '\n'

    def _front_matter(self) -> dict[str, Any]:
        front: dict[str, Any] = {} if self.license_id is None else {'license': self.license_id}
        front |= {'library_name': 'inline-attention', 'tags': attention_tags(self.attention)}
        config = self.meta.get('cfg', '')
        for toolbox, pipeline in PIPELINES.items():
            if f"default_scope = '{toolbox}'" in config:
                front['pipeline_tag'] = pipeline
        return front

    def _facts(self) -> list[str]:
        facts = [
            f'- file: `{self.file}`, sha256 `{self.digest}`',
            f'- {self.parameters / 1e6:.2f} M parameters: {self.weights}',
        ]
        if 'iter' in self.meta:
            epochs = f' ({self.meta["epoch"]} epochs)' if self.meta.get('epoch') else ''
            facts.append(f'- trained for {self.meta["iter"]} iterations{epochs}')
        if self.metafile_entry is not None:
            data = self.metafile_entry['Metadata']['Training Data']
            facts.append(f'- config: `{self.config}`, for {data}')
        classes = self._classes()
        if classes:
            more = f' and {len(classes) - _MAX_CLASSES} more' if len(classes) > _MAX_CLASSES else ''
            facts.append(f'- {len(classes)} classes: {", ".join(map(str, classes[:_MAX_CLASSES]))}{more}')
        return facts

    def _classes(self) -> Sequence[str]:
        return (self.meta.get('dataset_meta') or {}).get('classes') or ()

    def _results(self) -> list[str]:
        if self.measured:
            return [f'Measured with this file:\n\n{_table(self.measured)}']
        entry = self.metafile_entry or {}
        measured = entry.get('Results') or []
        expected = dict((entry.get('Metadata') or {}).get('Expected') or {})
        source = expected.pop('Source', None)
        sections = [
            f'Measured with this code and config on {result["Dataset"]}. `results/measured/` names the run, '
            f'which may differ from the run of this file.\n\n{_table(result["Metrics"])}'
            for result in measured
        ]
        if expected:
            sections.append(
                f'Expected for this config (source: {source}), not measured:\n\n{_table(expected)}'
            )
        if not measured:
            sections.append('No result of this file has been measured.')
        return sections

    def _usage(self) -> str:
        if self.packaged:
            return _PACKAGED_USAGE.format(name=Path(self.file).stem, classes=len(self._classes()))
        lines = ['In a clone of the repository:', '', '```bash']
        lines += [f'python tools/test.py {self.config} PATH_OF_THIS_FOLDER/{self.file}', '```']
        if self.is_backbone:
            lines += [
                '',
                '```python',
                'from inline import InLineBackbone',
                '',
                "model = InLineBackbone.from_pretrained('.')  # this folder, or USER/MODEL on the Hub",
                '```',
            ]
        return '\n'.join(lines)


def count_attention(model: nn.Module) -> Counter[str]:
    """Return the number of blocks per attention, by a short description of it."""
    return Counter(_describe(mixer) for mixer in model.modules() if isinstance(mixer, AttentionMixer))


def describe_attention(counts: Mapping[str, int]) -> str:
    """Return a sentence about the result of :func:`count_attention`."""
    listed = [f'{name} in {number} block{"" if number == 1 else "s"}' for name, number in counts.items()]
    source = f' InLine is described in {PAPER}.' if any(map(_is_inline, counts)) else ''
    return f'Attention: {", ".join(listed)}.{source}'


def attention_tags(counts: Mapping[str, int]) -> list[str]:
    """Return the tags for the Hugging Face Hub."""
    tags = ['linear-attention'] if any(name != 'Softmax' for name in counts) else []
    return [*tags, *(['inline'] if any(map(_is_inline, counts)) else [])]


def _describe(mixer: AttentionMixer) -> str:
    name = _MIXER_NAMES.get(type(mixer), type(mixer).__name__)
    if not isinstance(mixer, InLineMixer):
        return name
    form = 'injective linear attention' if mixer.injective else 'linear attention divided by its sum'
    return f'{name} ({form}, {"with" if mixer.residual is not None else "without"} a local residual)'


def _is_inline(description: str) -> bool:
    return description.startswith('InLine ')


def _table(results: Mapping[str, Any]) -> str:
    rows = ['| metric | value |', '|---|---|', *(f'| {key} | {value} |' for key, value in results.items())]
    return '\n'.join(rows)
