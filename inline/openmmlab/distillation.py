"""Knowledge distillation: a student learns from a fixed teacher.

A config describes both, and the losses, as data::

    model = dict(
        type='inline.Distiller',
        student=dict(type='ImageClassifier', ...),
        teacher=dict(type='ImageClassifier', ...),
        teacher_checkpoint='softmax.pth',
        losses=[dict(type='inline.LogitLoss', weight=0.8, temperature=2.0)],
        label_weight=0.2,
    )

=================  ====================================================  ===============================
loss               compares                                              models
=================  ====================================================  ===============================
``LogitLoss``      class probabilities                                   classifiers
``FeatureLoss``    feature maps of the backbones                         any, with features of one shape
``MixerLoss``      each replaced token mixer with the teacher's, on the  any, with our backbones
                   teacher's activations
=================  ====================================================  ===============================

Checkpoints hold the student alone, under the names that it has without a teacher: they are tested, exported
and fine-tuned with the student's own config.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS as ALL_MODELS
from torch import Tensor, nn

from inline.checkpoints import (
    check_num_heads,
    load_complete_state_dict,
    load_partial_state_dict,
    read_checkpoint,
)
from inline.models.backbones.common import Backbone
from inline.models.mixers import AttentionMixer
from inline.registry import MODELS
from inline.utils.errors import UserError
from inline.utils.nested import walk_dicts


class Recording:
    """Outputs of student and teacher in one training step, for the distillation losses.

    Attributes:
        student_logits, teacher_logits: (B, classes), of classifiers.
        student_features, teacher_features: Feature maps of the backbones, each (B, C, H, W).
        mixer_pairs: Output of each replaced mixer of the student and of the teacher, for the same input.
    """

    student_logits: Tensor
    teacher_logits: Tensor
    student_features: tuple[Tensor, ...]
    teacher_features: tuple[Tensor, ...]
    mixer_pairs: list[tuple[Tensor, Tensor]]


@MODELS.register_module()
class Distiller(BaseModel):
    """Trains a model on the labels and on the outputs of a teacher.

    Args:
        student: Config of a model of mmpretrain, mmdet or mmseg. Its data preprocessor is used.
        teacher: Config of the teacher, or a callable that returns logits (B, classes): a module whose
            ``forward`` has no argument ``data_samples``, such as one of timm, is called with the images, any
            other callable as ``teacher(inputs, data_samples)``. A module is set to evaluation mode, gets no
            gradients and is not saved.
        losses: Configs of the distillation losses.
        label_weight: Weight of the student's own losses; 0 omits them.
        teacher_checkpoint: Weights of the teacher. Those of a plain DeiT, ViT, PVT, Swin or CSwin of other
            projects are converted if the teacher has one of our backbones.
        teacher_mean, teacher_std: Normalisation of the teacher, if it is not that of the student.
        from_teacher: Start from the teacher's weights, where names and shapes match.
        train_only: ``'mixers'`` to train only the token mixers that differ from the teacher's.
    """

    def __init__(
        self,
        student: dict[str, Any],
        teacher: Any,
        losses: Sequence[dict[str, Any]],
        label_weight: float = 1.0,
        teacher_checkpoint: str | None = None,
        teacher_mean: Sequence[float] | None = None,
        teacher_std: Sequence[float] | None = None,
        from_teacher: bool = False,
        train_only: str | None = None,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if data_preprocessor is not None:
            student = {'data_preprocessor': data_preprocessor, **student}
        # The root registry resolves types in the toolbox of the run.
        self.student = ALL_MODELS.build(student)
        # The training step of BaseModel calls this one.
        self.data_preprocessor = self.student.data_preprocessor
        self.distillation_losses = nn.ModuleList(ALL_MODELS.build(loss) for loss in losses)
        self._needs = {loss.needs for loss in self.distillation_losses}
        if isinstance(teacher, dict):
            teacher = build_teacher(teacher, teacher_checkpoint, with_head='logits' in self._needs)
        elif teacher_checkpoint is not None:
            load_teacher(teacher, teacher_checkpoint)
        if isinstance(teacher, nn.Module):
            teacher.requires_grad_(False).eval()
        # In a tuple, the teacher is not a submodule: it stays out of checkpoints, optimizers and `train()`.
        self._teacher = (teacher,)
        self.label_weight = label_weight
        self.from_teacher = from_teacher
        if self._needs & {'features', 'mixers'} and not hasattr(teacher, 'extract_feat'):
            raise UserError(
                f'FeatureLoss and MixerLoss need a teacher of mmpretrain, mmdet or mmseg: it is a '
                f'{type(teacher).__name__}, which has no extract_feat'
            )
        self._renormalize = self._renormalization(teacher_mean, teacher_std)
        self._mixers = (
            replaced_mixers(self.student, teacher) if 'mixers' in {*self._needs, train_only} else {}
        )
        if train_only is not None:
            self._freeze_all_but(train_only)

    def init_weights(self) -> None:
        """Initialise the student, or copy the teacher's weights into it."""
        super().init_weights()
        if self.from_teacher:
            self.copy_teacher()

    def copy_teacher(self) -> None:
        """Copy the teacher's weights into the student, where names and shapes match."""
        load_partial_state_dict(self.student, self._teacher[0].state_dict(), 'the teacher')

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = 'tensor') -> Any:
        """Return the losses in mode ``'loss'``, and what the student returns in the other modes."""
        if mode != 'loss':
            return self.student(inputs, data_samples, mode)
        recording = Recording()
        self._run_teacher(recording, inputs, data_samples)
        losses = self._run_student(recording, inputs, data_samples)
        for index, loss in enumerate(self.distillation_losses):
            losses[f'loss_distill_{index}' if index else 'loss_distill'] = loss(recording)
        return losses

    def state_dict(self, *args: Any, prefix: str = '', **kwargs: Any) -> Any:
        """Return the state dict of the student."""
        return self.student.state_dict(*args, prefix=prefix, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of the student."""
        return self.student.load_state_dict(state_dict, *args, **kwargs)

    @torch.no_grad()
    def _run_teacher(self, recording: Recording, inputs: Tensor, data_samples: Any) -> None:
        teacher = self._teacher[0]
        if isinstance(teacher, nn.Module):
            teacher.to(inputs.device)
        calls: list[tuple[AttentionMixer, tuple[Any, ...], Tensor]] = []
        block_inputs: dict[str, Tensor] = {}
        hooks = []
        for name, (ours, theirs) in self._mixers.items():
            # A block calls its mixer with the tokens after its norm; some mixers also need those before it.
            block = teacher.get_submodule(name.rpartition('.')[0])
            hooks += [
                block.register_forward_pre_hook(
                    lambda _, args, name=name: block_inputs.__setitem__(name, args[0])
                ),
                theirs.register_forward_hook(
                    lambda _, args, output, ours=ours, name=name: calls.append(
                        (ours, (*args[:2], block_inputs[name]), output)
                    )
                ),
            ]
        try:
            with _capture(teacher, 'backbone', recording, 'teacher_features'):
                images = self._renormalize(inputs)
                if 'logits' in self._needs:
                    recording.teacher_logits = self._call_teacher(images, data_samples)
                elif self._needs:
                    teacher.extract_feat(images)
        finally:
            for hook in hooks:
                hook.remove()
        if 'mixers' in self._needs:
            with torch.enable_grad():
                recording.mixer_pairs = [(mixer(*args), output) for mixer, args, output in calls]

    def _call_teacher(self, images: Tensor, data_samples: Any) -> Tensor:
        teacher = self._teacher[0]
        takes_samples = not isinstance(teacher, nn.Module) or (
            'data_samples' in inspect.signature(teacher.forward).parameters
        )
        logits: Tensor = teacher(images, data_samples) if takes_samples else teacher(images)
        return logits

    def _run_student(self, recording: Recording, inputs: Tensor, data_samples: Any) -> dict[str, Any]:
        if not self.label_weight and self._needs <= {'mixers'}:
            return {}
        with (
            _capture(self.student, 'backbone', recording, 'student_features'),
            _capture(self.student, 'head', recording, 'student_logits'),
        ):
            losses = self.student.loss(inputs, data_samples)
        if not self.label_weight:
            return {}
        return {name: _scale(value, self.label_weight) for name, value in losses.items()}

    def _renormalization(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> Any:
        """Return the function from images normalised for the student to images for the teacher."""
        if mean is None and std is None:
            return lambda images: images
        if mean is None or std is None or not getattr(self.data_preprocessor, '_enable_normalize', False):
            raise UserError(
                'teacher_mean and teacher_std belong together, and need a student that normalises'
            )
        ours = self.data_preprocessor.mean, self.data_preprocessor.std
        theirs = [torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (mean, std)]
        scale, shift = ours[1] / theirs[1], (ours[0] - theirs[0]) / theirs[1]
        return lambda images: images * scale.to(images) + shift.to(images)

    def _freeze_all_but(self, train_only: str) -> None:
        if train_only != 'mixers':
            raise UserError(f"train_only={train_only!r}: must be 'mixers' or None")
        self.student.requires_grad_(False)
        for ours, _ in self._mixers.values():
            ours.requires_grad_(True)


def build_teacher(config: dict[str, Any], checkpoint: str | None, with_head: bool) -> Any:
    """Build the teacher of a config and load its weights.

    Args:
        config: Config of a model of a toolbox, which must state its weights, or of any other registered
            class, which has to load its own.
        checkpoint: Weights to load; None for those that the config states.
        with_head: Whether the logits are needed, so that pretrained weights of the backbone are not enough.
    """
    teacher: Any = ALL_MODELS.build(deepcopy(config))
    if checkpoint is not None:
        load_teacher(teacher, checkpoint)
    elif isinstance(teacher, BaseModel):
        nodes = [config, config.get('init_cfg')] if with_head else [node for _, node in walk_dicts(config)]
        stated = [node for node in nodes if isinstance(node, dict)]
        if any(
            node.get('type') == 'Pretrained' or isinstance(node.get('pretrained'), str) for node in stated
        ):
            teacher.init_weights()
        # Models of timm load their weights when they are built; init_weights would overwrite them.
        elif not any(node.get('pretrained') or node.get('checkpoint_path') for node in stated):
            raise UserError(
                f'teacher {config.get("type")!r} has no weights{" for its head" if with_head else ""}: give '
                "teacher_checkpoint, an init_cfg of type 'Pretrained' of the whole model, or pretrained=True "
                'for a model of timm'
            )
    return teacher


def load_teacher(teacher: nn.Module, source: str) -> None:
    """Load all weights of a teacher."""
    is_ours = any(isinstance(module, Backbone) for module in teacher.modules())
    checkpoint = read_checkpoint(source, convert_softmax_models=is_ours)
    check_num_heads(teacher, checkpoint.meta, source)
    load_complete_state_dict(teacher, checkpoint.state_dict, source)


def replaced_mixers(student: nn.Module, teacher: Any) -> dict[str, tuple[AttentionMixer, AttentionMixer]]:
    """Return the token mixers of the student that differ from the teacher's, each with the teacher's."""
    theirs = dict(teacher.named_modules()) if isinstance(teacher, nn.Module) else {}
    pairs = {
        name: (ours, theirs[name])
        for name, ours in student.named_modules()
        if isinstance(ours, AttentionMixer)
        and isinstance(theirs.get(name), AttentionMixer)
        and type(ours) is not type(theirs[name])
    }
    if not pairs:
        raise UserError('no token mixer of the student replaces one of the teacher: compare their `mixers`')
    return pairs


@MODELS.register_module()
class LogitLoss(nn.Module):
    """Kullback–Leibler divergence of the student's class probabilities from the teacher's.

    Both are softened by the temperature T. The factor T² keeps the gradient scale (Hinton et al. 2015).

    Args:
        weight: Factor of the loss.
        temperature: Divisor of the logits.
    """

    needs = 'logits'

    def __init__(self, weight: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise UserError(f'temperature={temperature!r} of LogitLoss: must be greater than 0')
        self.weight = weight
        self.temperature = temperature

    def forward(self, recording: Recording) -> Tensor:
        logits, target = recording.student_logits, recording.teacher_logits
        if logits.shape != target.shape:
            raise UserError(
                f'the teacher has logits of shape {tuple(target.shape)}, the student {tuple(logits.shape)}: '
                'both must have the same classes'
            )
        student = F.log_softmax(logits / self.temperature, dim=1)
        teacher = F.log_softmax(target.to(student.dtype) / self.temperature, dim=1)
        divergence = F.kl_div(student, teacher, log_target=True, reduction='batchmean')
        return self.weight * self.temperature**2 * divergence


@MODELS.register_module()
class FeatureLoss(nn.Module):
    """Relative squared error of the student's feature maps, averaged over the outputs of the backbone.

    Args:
        weight: Factor of the loss.
    """

    needs = 'features'

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, recording: Recording) -> Tensor:
        ours, theirs = recording.student_features, recording.teacher_features
        shapes = [[tuple(feature.shape) for feature in features] for features in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise UserError(f'feature maps of the student {shapes[0]} and of the teacher {shapes[1]} differ')
        return (
            self.weight
            * torch.stack([relative_error(*pair) for pair in zip(ours, theirs, strict=True)]).mean()
        )


@MODELS.register_module()
class MixerLoss(nn.Module):
    """Relative squared error of each replaced mixer's output, averaged over the mixers.

    All of them see the teacher's activations, so they learn independently of each other.

    Args:
        weight: Factor of the loss.
    """

    needs = 'mixers'

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, recording: Recording) -> Tensor:
        return self.weight * torch.stack([relative_error(*pair) for pair in recording.mixer_pairs]).mean()


def relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error divided by the mean square of the target."""
    return F.mse_loss(output, target) / target.square().mean().clamp(min=1e-12)


@MODELS.register_module()
class StoredLogits(nn.Module):
    """A teacher whose logits were computed once for every training image.

    Random crops and shifts are ignored: the logits are those of the whole image, flipped if the image is.

    Args:
        file: A ``.npy`` file of shape (views, images, classes). View 0 is the image, view 1 its horizontal
            flip. Images are in the order of the dataset. ``tools/store_logits.py`` writes it.
    """

    def __init__(self, file: str | Path) -> None:
        super().__init__()
        try:
            self.logits = np.load(file, mmap_mode='r', allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f'teacher logits {str(file)!r} cannot be read: {error}; tools/store_logits.py writes them'
            ) from error
        if self.logits.ndim != 3 or self.logits.shape[0] not in (1, 2):
            raise UserError(
                f'teacher logits {str(file)!r} have shape {self.logits.shape}: '
                'must be (1 or 2 views, images, classes)'
            )

    def forward(self, inputs: Tensor, data_samples: Sequence[Any]) -> Tensor:
        """Return the logits (B, classes) of a batch by ``sample_idx`` and ``flip`` of its samples."""
        views, images, _ = self.logits.shape
        index = np.array([sample.metainfo['sample_idx'] for sample in data_samples])
        flipped = np.array([bool(sample.metainfo.get('flip')) for sample in data_samples])
        if index.max() >= images:
            raise UserError(
                f'sample {index.max()} has no teacher logits: they were stored for {images} images'
            )
        if flipped.any() and views == 1:
            raise UserError(
                'an image is flipped, but the stored teacher logits have no view of flipped images'
            )
        return torch.from_numpy(self.logits[flipped.astype(int), index].astype(np.float32)).to(inputs.device)


@contextmanager
def _capture(model: Any, name: str, recording: Recording, attribute: str) -> Iterator[None]:
    """Record the output of a submodule, if the model has it."""
    module = getattr(model, name, None)
    if not isinstance(module, nn.Module):
        yield
        return
    hook = module.register_forward_hook(lambda _, __, output: setattr(recording, attribute, output))
    try:
        yield
    finally:
        hook.remove()


def _scale(losses: Any, factor: float) -> Any:
    """Multiply a loss, or a list of losses as detectors return them."""
    return [loss * factor for loss in losses] if isinstance(losses, list) else losses * factor
