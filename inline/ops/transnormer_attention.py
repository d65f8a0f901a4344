"""TransNormer's NormAttention: linear attention that divides by the size of its output, not by a sum.

With φ(x) = elu(x) + 1, in each head

    o_i = (1/N) Σ_j φ(q_i)·φ(k_j) v_j,        out_i = o_i / RMS_i

and RMS_i the root of the mean square of o_i over the channels of all heads, as in the authors' code, which
norms the heads laid side by side.

The division is by one number for each query, so the output is a weighted sum of the values after all,
with w_ij = φ(q_i)·φ(k_j) / (N · RMS_i). These weights depend on the values and do not sum to 1.

1/N leaves the output as it is but for the 1e-6 within the root, and keeps half precision in range. A
learned gain after the norm is left out: the projection that follows can hold it. The paper's other part,
softmax within diagonal blocks of the sequence, belongs to the early layers of a TransNormer and is not here.

Reference: Qin, Han, Sun, Li, Kong, Barnes, Zhong, "The Devil in Linear Transformer", EMNLP 2022,
arXiv 2210.10340.
"""

import torch.nn.functional as F
from torch import Tensor

from inline.ops.features import weigh_values
from inline.ops.kernels import apply_kernel
from inline.ops.masking import count_keys, zero_masked

EPSILON = 1e-6
# A token is all heads and channels of (B, heads, N, d).
TOKEN = (1, 3)


def transnormer_attention(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        key_mask: (B, N), True for the keys that take part; None for all.

    Returns:
        (B, heads, M, e), of root mean square 1 over heads and e.
    """
    out = weigh_values(apply_kernel('elu', q), apply_kernel('elu', k, key_mask), v, key_mask)
    by_token = out.transpose(1, 2)
    return F.rms_norm(by_token, by_token.shape[-2:], eps=EPSILON).transpose(1, 2)


def transnormer_attention_naive(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """The twin of :func:`transnormer_attention` with the M×N weights written out."""
    return transnormer_attention_weights(q, k, v, key_mask=key_mask) @ zero_masked(v, key_mask)


def transnormer_attention_weights(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """The weights of every query on every key, (B, heads, M, N); a masked key has weight 0."""
    scores = apply_kernel('elu', q) @ apply_kernel('elu', k, key_mask).transpose(-2, -1)
    weights = scores / count_keys(k, key_mask)
    mean_square = (weights @ zero_masked(v, key_mask)).square().mean(dim=TOKEN, keepdim=True)
    return weights / (mean_square + EPSILON).sqrt()
