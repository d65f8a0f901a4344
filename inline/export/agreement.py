"""Whether an exported file computes what the model does."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from inline.errors import UserError
from inline.export.formats import MIN_OPEN_SIZE, Run

# As a share of the largest output, or of 1 if outputs are smaller.
TOLERANCE = 1e-4

Shape = tuple[int, int, int]


def shapes_to_try(size: tuple[int, int], dynamic: bool) -> list[Shape]:
    """Batches, heights and widths: the export’s own, and with `dynamic` four others, not of whole strides."""
    height, width = size
    if not dynamic:
        return [(1, height, width)]
    return [
        (1, height, width),
        (1, height + 32, width + 64),
        (3, _another(height // 2 + 5, height), width),
        (2, height + 13, _another(width // 2 + 7, width)),
        (1, _another(MIN_OPEN_SIZE, height), _another(MIN_OPEN_SIZE, width)),
    ]


def _another(side: int, than: int) -> int:
    """About `side`, as far as that is allowed, and never the same as `than`."""
    allowed = max(side, MIN_OPEN_SIZE)
    return allowed if allowed != than else than + 21


def check_agreement(network: nn.Module, run: Run, shapes: Sequence[Shape], channels: int) -> float:
    """Refuse a file whose outputs differ from the model's; the largest difference as a share of them."""
    worst = 0.0
    for batch, height, width in shapes:
        image = torch.randn(
            batch, channels, height, width, generator=torch.Generator().manual_seed(height * width)
        )
        with torch.no_grad():
            expected = network(image)
            difference = relative_difference(run(image), expected)
        # Not the other way round: a difference that is no number must not pass.
        if not difference <= TOLERANCE:
            raise UserError(
                f'the exported file differs from the model by {difference:.1e} for {batch} images of '
                f'{height}×{width}, at most {TOLERANCE:.0e} is allowed: nothing was written'
            )
        worst = max(worst, difference)
    return worst


def relative_difference(outs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference, as a share of the largest expected number of its output, or of 1."""
    if [out.shape for out in outs] != [out.shape for out in expected]:
        return float('inf')
    shares = [
        float((out - wanted).abs().max() / wanted.abs().max().clamp(min=1))
        for out, wanted in zip(outs, expected, strict=True)
    ]
    return float('nan') if any(share != share for share in shares) else max(shares)
