"""Images that grow during training, and the compiled backbone."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from inline.engine.hooks.fast_training import CompileBackboneHook, ProgressiveResizeHook, find_backbone
from inline.utils.errors import UserError


def resize(hook: ProgressiveResizeHook, step: int, steps: int, images: Any) -> Any:
    batch = {'inputs': images}
    hook.before_train_iter(SimpleNamespace(iter=step, max_iters=steps), 0, batch)
    return batch['inputs']


def test_the_side_follows_the_fraction_of_the_training() -> None:
    hook = ProgressiveResizeHook([(0, 8), (0.5, 12), (0.8, 16)])
    images = [torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8) for _ in range(2)]
    sides = [resize(hook, step, 10, images).shape[-1] for step in range(10)]
    assert sides == [8] * 5 + [12] * 3 + [16] * 2
    torch.testing.assert_close(resize(hook, 9, 10, images), torch.stack(images))
    grey = torch.full((1, 3, 16, 16), 77, dtype=torch.uint8)
    assert (resize(hook, 0, 10, grey) == 77).all()


def test_an_invalid_schedule_and_mixed_shapes_are_named() -> None:
    for sizes in ([], [(0.1, 8)], [(0, 8), (0.6, 12), (0.4, 16)], [(0, 8), (1, 16)]):
        with pytest.raises(UserError, match='must start at 0, increase and stay below 1'):
            ProgressiveResizeHook(sizes)
    with pytest.raises(UserError, match=r'one shape, not \[\(3, 4, 4\), \(3, 4, 5\)\]'):
        resize(ProgressiveResizeHook([(0, 8)]), 0, 1, [torch.zeros(3, 4, 4), torch.zeros(3, 4, 5)])


class Backbone(nn.Module):
    # torch does not compile its own modules alone.
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_only_training_runs_the_compiled_backbone() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*inputs: Any) -> Any:
            compiled.append(len(inputs))
            return graph.forward(*inputs)

        return run

    model = nn.Module()
    model.student = nn.Module()
    model.student.backbone = Backbone()
    names = list(model.state_dict())
    runner = SimpleNamespace(model=model, logger=logging.getLogger('test'))
    hook = CompileBackboneHook(backend=backend)
    hook.before_train(runner)
    inputs = torch.rand(1, 2)
    expected = model.student.backbone.forward(inputs)
    hook.before_val(runner)
    torch.testing.assert_close(model.student.backbone(inputs), expected)
    assert not compiled
    hook.after_val(runner)
    torch.testing.assert_close(model.student.backbone(inputs), expected)
    assert len(compiled) == 1
    assert list(model.state_dict()) == names


def test_a_model_without_backbone_is_named() -> None:
    with pytest.raises(UserError, match='Linear has no backbone to compile'):
        find_backbone(nn.Linear(1, 1))
