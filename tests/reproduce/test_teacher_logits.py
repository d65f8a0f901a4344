"""Stored logits of a teacher: order, views, and the linear classifier on its features."""

from pathlib import Path

import numpy as np
import pytest
import torch

from inline.reproduce import teacher_logits
from inline.utils.errors import UserError
from tests.configs.tiny_datasets import write_tiny_imagenet


def test_the_linear_classifier_separates_separable_features() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    centers = torch.tensor([[4.0, 0, 100], [0, 4.0, 100], [0, 0, 100]])
    features = torch.stack([centers[labels] + torch.randn(300, 3, generator=generator) / 4 for _ in range(2)])
    classify = teacher_logits.fit_linear_classifier(features, labels, 3, epochs=60, batch_size=32)
    assert classify(features[1]).shape == (300, 3)
    assert (classify(features[1]).argmax(1) == labels).float().mean() > 0.95
    again = teacher_logits.fit_linear_classifier(features, labels, 3, epochs=60, batch_size=32)
    torch.testing.assert_close(classify(features[0]), again(features[0]))


@pytest.mark.slow
def test_logits_are_stored_in_the_order_of_the_dataset_for_image_and_flip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tiny_imagenet(tmp_path)
    seen = []

    def extract(images: np.ndarray) -> np.ndarray:
        seen.append(images)
        return images.mean((1, 2, 3))[:, None]

    # The identity in place of a classifier: the file then holds the features.
    monkeypatch.setattr(teacher_logits, 'fit_linear_classifier', lambda *_: lambda x: x.float())
    teacher_logits.store_logits(root, tmp_path / 'logits.npy', extract)
    stored = np.load(tmp_path / 'logits.npy')
    assert stored.dtype == np.float16
    assert stored.shape == (2, 4, 1)
    image, flipped = seen[:2]
    np.testing.assert_array_equal(image[..., ::-1], flipped)
    assert image.shape == (4, 3, 64, 64)
    assert -1 <= image.min() <= image.max() <= 1
    np.testing.assert_allclose(stored[0, :, 0], image.mean((1, 2, 3)), rtol=1e-3)


def test_missing_packages_of_the_teacher_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_logits, '_TEACHER_PACKAGES', ('numpy', 'not_installed'))
    with pytest.raises(UserError, match='not_installed is not installed: pip install numpy not_installed'):
        teacher_logits.load_teacher()
