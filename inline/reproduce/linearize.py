"""Conversion of a trained softmax model to an InLine model of the same family, by distillation.

The student is the model of the softmax config with InLine token mixers. It starts from the teacher's weights:
all layers that both share, projections of the mixers included. Two phases follow, each a plain config in the
work directory:

1. ``match.py`` (optional): every new mixer learns the output of the mixer that it replaces, all of them in
   parallel from the teacher's activations. Nothing else is trained.
2. ``distill.py``: all parameters learn from the teacher's logits (of a classifier) or feature maps (of a
   detector or segmentor) and from the labels.

``student.py`` is the config of the result.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from inline.engine.config import load_config
from inline.engine.launch import drop_pretrained
from inline.models.mixers import InLineMixer, expand_mixers
from inline.models.mixers.registry import MixerConfig, MixersConfig
from inline.reproduce.runs import call, last_checkpoint, tool_command
from inline.utils.atomic import make_folder
from inline.utils.errors import UserError

# Default length of the distillation, as a share of the epochs of the softmax config.
DEFAULT_SHARE = 0.2


@dataclass(frozen=True)
class Linearization:
    """What to convert and for how long.

    Args:
        config: Config of the softmax model.
        weights: Its checkpoint.
        work_dir: Folder for configs, logs and checkpoints.
        stages: Stages (DeiT: blocks) whose mixers are replaced, from 1; None for those of the family's InLine
            model.
        epochs: Epochs of the distillation; None for a fifth of those of the config.
        match_epochs: Epochs of the matching phase; 0 omits it.
    """

    config: str | Path
    weights: str
    work_dir: Path
    stages: Sequence[int] | None = None
    epochs: int | None = None
    match_epochs: int = 0

    def write_configs(self) -> dict[str, Path]:
        """Write the configs of student and phases; return their paths by name."""
        cfg = load_config(self.config)
        student = student_config(cfg, self.stages)
        configs = {'student': student}
        if self.match_epochs:
            configs['match'] = distiller_config(cfg, student, self.weights, matching=True)
        configs['distill'] = distiller_config(cfg, student, self.weights, matching=False)
        make_folder('--work-dir', self.work_dir)
        paths = {name: self.work_dir / f'{name}.py' for name in configs}
        for name, path in paths.items():
            configs[name].dump(str(path))
        return paths

    def run(self, processes: int = 1, flags: Sequence[str] = ()) -> Path:
        """Run the phases; return the folder with the checkpoints of the student."""
        epochs = self.epochs or default_epochs(load_config(self.config))
        paths = self.write_configs()
        options = []
        if self.match_epochs:
            folder = self.work_dir / 'match'
            self._train(paths['match'], folder, self.match_epochs, processes, flags)
            options = ['--cfg-options', f'load_from={last_checkpoint(folder)}']
        folder = self.work_dir / 'distill'
        self._train(paths['distill'], folder, epochs, processes, [*flags, *options])
        return folder

    @staticmethod
    def _train(config: Path, folder: Path, epochs: int, processes: int, words: Sequence[str]) -> None:
        command = tool_command(
            'train', [config], processes, ['--work-dir', folder, '--resume', '--epochs', epochs, *words]
        )
        call(command, config.stem)


def student_config(cfg: Config, stages: Sequence[int] | None) -> Config:
    """Return the softmax config with InLine mixers.

    Args:
        cfg: Config of a model with a backbone of ours whose mixers are all softmax.
        stages: Stages to convert, from 1; of a DeiT, blocks. None for those of the family's InLine model.
    """
    backbone = cfg.model.get('backbone') or {}
    mixers = backbone.get('mixers')
    if not str(backbone.get('type')).startswith('inline.') or mixers is None:
        raise UserError('linearize needs a backbone of type inline.… with mixers=dict(type="Softmax")')
    depths = [len(stage) for stage in _find_inline(backbone)]
    entries = expand_mixers(mixers, depths)
    others = {entry['type'] for stage in entries for entry in stage} - {'Softmax'}
    if others:
        raise UserError(f'linearize needs softmax mixers; the config also has {", ".join(sorted(others))}')
    if stages is not None and (not stages or not set(stages) <= set(range(1, len(depths) + 1))):
        raise UserError(f'stages {list(stages)}: must be some of 1 to {len(depths)}')
    usual = _find_inline({name: value for name, value in backbone.items() if name != 'mixers'})
    student = Config(deepcopy(cfg._cfg_dict))
    drop_pretrained(student.model)
    student.model.backbone.mixers = _shorten(
        [
            [
                {'type': 'InLine'} if (is_inline if stages is None else number in stages) else dict(entry)
                for entry, is_inline in zip(stage, of_usual, strict=True)
            ]
            for number, (stage, of_usual) in enumerate(zip(entries, usual, strict=True), start=1)
        ]
    )
    return student


def _find_inline(backbone: Mapping[str, Any]) -> list[list[bool]]:
    """Return for each block of each stage of a backbone config whether its mixer is InLine.

    Each block of a DeiT is a stage, as in the argument ``mixers``.
    """
    from inline.openmmlab.backbones import MODELS

    with torch.device('meta'):
        model = MODELS.build(
            {key: backbone[key] for key in backbone if key not in ('init_cfg', 'out_indices')}
        )
    stages = [stage.blocks for stage in model.stages] if hasattr(model, 'stages') else zip(model.blocks)
    return [[isinstance(block.mixer, InLineMixer) for block in stage] for stage in stages]


def _shorten(entries: list[list[MixerConfig]]) -> MixersConfig:
    """Return the shortest form of ``mixers`` that is the same: one dict per stage or for all blocks."""
    per_stage = [stage[0] if all(entry == stage[0] for entry in stage) else stage for stage in entries]
    is_uniform = isinstance(per_stage[0], dict) and all(stage == per_stage[0] for stage in per_stage)
    return per_stage[0] if is_uniform else per_stage


def distiller_config(cfg: Config, student: Config, weights: str, matching: bool) -> Config:
    """Return the config of one phase."""
    is_classifier = cfg.model.type == 'ImageClassifier'
    loss = 'MixerLoss' if matching else 'LogitLoss' if is_classifier else 'FeatureLoss'
    phase = Config(deepcopy(cfg._cfg_dict))
    # The weights of the whole teacher replace those that its backbone was trained from.
    drop_pretrained(phase.model)
    phase.model = {
        'type': 'inline.Distiller',
        'student': deepcopy(student.model),
        'teacher': phase.model,
        'teacher_checkpoint': weights,
        'losses': [{'type': f'inline.{loss}'}],
        'label_weight': 0.0 if matching else 1.0,
        'from_teacher': True,
        'train_only': 'mixers' if matching else None,
    }
    return phase


def default_epochs(cfg: Config) -> int:
    """Return a fifth of the epochs of a config, at least one."""
    epochs = cfg.train_cfg.get('max_epochs')
    if not epochs:
        raise UserError('the config counts iterations: give the length of the distillation with --epochs')
    return max(1, round(DEFAULT_SHARE * epochs))
