"""Knowledge distillation: a student learns from the outputs of a fixed teacher.

A config describes both as data::

    model = dict(
        type='inline.Distiller',
        student=dict(type='ImageClassifier', ...),
        teacher=dict(type='inline.StoredLogits', file='teacher_logits.npy'),
        losses=[dict(type='inline.LogitLoss', weight=0.7, temperature=1.0)],
    )

Checkpoints hold the student alone, under the names that it has without a teacher: they are tested, exported
and fine-tuned with the student's own config.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS as ALL_MODELS
from torch import Tensor, nn

from inline.registry import MODELS
from inline.utils.errors import UserError


@MODELS.register_module()
class Distiller(BaseModel):
    """Trains a classifier on its labels and on the outputs of a teacher.

    Args:
        student: Config of an mmpretrain classifier. Its data preprocessor normalises the images.
        teacher: Config of the teacher, or a callable: ``teacher(inputs, data_samples)`` returns logits
            (B, classes). A module is set to evaluation mode, gets no gradients and is not saved.
        losses: Configs of the distillation losses, such as :class:`LogitLoss`.
        label_weight: Weight of the losses of the student's own head.
    """

    def __init__(
        self,
        student: dict[str, Any],
        teacher: Any,
        losses: Sequence[dict[str, Any]],
        label_weight: float = 1.0,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(init_cfg=init_cfg)
        if data_preprocessor is not None:
            student = {'data_preprocessor': data_preprocessor, **student}
        # The root registry looks in the toolbox of the run.
        self.student = ALL_MODELS.build(student)
        # The training step of BaseModel calls this one.
        self.data_preprocessor = self.student.data_preprocessor
        teacher = ALL_MODELS.build(teacher) if isinstance(teacher, dict) else teacher
        if isinstance(teacher, nn.Module):
            teacher.requires_grad_(False).eval()
        # In a tuple, the teacher is not a submodule: it stays out of checkpoints, optimizers and `train()`.
        self._teacher = (teacher,)
        self.distillation_losses = nn.ModuleList(ALL_MODELS.build(loss) for loss in losses)
        self.label_weight = label_weight

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = 'tensor') -> Any:
        """Return the losses in mode ``'loss'``, and what the student returns in the other modes."""
        if mode != 'loss':
            return self.student(inputs, data_samples, mode)
        with torch.no_grad():
            target = self._teacher[0](inputs, data_samples)
        features = self.student.extract_feat(inputs)
        losses = {
            name: self.label_weight * value
            for name, value in self.student.head.loss(features, data_samples).items()
        }
        logits = self.student.head(features)
        for index, loss in enumerate(self.distillation_losses):
            losses[f'loss_distill_{index}' if index else 'loss_distill'] = loss(logits, target)
        return losses

    def state_dict(self, *args: Any, prefix: str = '', **kwargs: Any) -> Any:
        """Return the state dict of the student."""
        return self.student.state_dict(*args, prefix=prefix, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict of the student."""
        return self.student.load_state_dict(state_dict, *args, **kwargs)


@MODELS.register_module()
class LogitLoss(nn.Module):
    """Kullback–Leibler divergence of the student's class probabilities from the teacher's.

    Both are softened by the temperature T. The factor T² keeps the size of the gradient (Hinton et al. 2015).

    Args:
        weight: Factor of the loss.
        temperature: Divisor of the logits.
    """

    def __init__(self, weight: float = 1.0, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise UserError(f'temperature={temperature!r} of LogitLoss: must be greater than 0')
        self.weight = weight
        self.temperature = temperature

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits (B, classes) for the teacher's logits (B, classes)."""
        if logits.shape != target.shape:
            raise UserError(
                f'the teacher has logits of shape {tuple(target.shape)}, the student {tuple(logits.shape)}: '
                'both need the same classes'
            )
        student = F.log_softmax(logits / self.temperature, dim=1)
        teacher = F.log_softmax(target.to(student.dtype) / self.temperature, dim=1)
        divergence = F.kl_div(student, teacher, log_target=True, reduction='batchmean')
        return self.weight * self.temperature**2 * divergence


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
            raise UserError(f'teacher logits {str(file)!r} cannot be read: {error}') from error
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
