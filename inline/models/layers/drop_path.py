from torch import Tensor, nn

from inline.errors import UserError


class DropPath(nn.Module):
    """Stochastic depth: in training, an image's branch is dropped with probability ``rate``."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UserError(f'drop path rate {rate}: must be at least 0 and below 1')
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        # Dividing by the share that stays keeps the branch's mean.
        alive = x.new_empty(x.shape[0], *[1] * (x.dim() - 1)).bernoulli_(keep)
        return x * alive / keep

    def extra_repr(self) -> str:
        return f'rate={self.rate:.3f}'


def drop_path_rates(last: float, depths: tuple[int, ...]) -> list[list[float]]:
    """Rates that grow linearly from 0 at the first block to ``last`` at the last one, per stage."""
    if not 0 <= last < 1:
        raise UserError(f'drop_path_rate {last}: must be at least 0 and below 1')
    steps = max(sum(depths) - 1, 1)
    rates = iter(last * i / steps for i in range(sum(depths)))
    return [[next(rates) for _ in range(depth)] for depth in depths]
