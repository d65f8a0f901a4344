"""Layer norm."""

from torch import nn


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` whose epsilon is a constant for torch.compile, also with ``dynamic=True``.

    torch.compile then traces float attributes as unknown numbers, which a region that is compiled once for
    several blocks does not support. Strings are constants.
    """

    _eps_text: str

    @property
    def eps(self) -> float:
        return float(self._eps_text)

    @eps.setter
    def eps(self, value: float) -> None:
        self._eps_text = repr(float(value))

    def extra_repr(self) -> str:
        return f'{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}'
