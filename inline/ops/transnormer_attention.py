"""TransNormer's NormAttention: linear attention normalised by the RMS of its output.

With φ(x) = elu(x) + 1, in each head

    o_i = (1/N) Σ_j φ(q_i)·φ(k_j) v_j,        out_i = o_i / RMS_i

where RMS_i is the root mean square of o_i over the channels of all heads, as in the authors' code.

RMS_i is one number per query, so the output is still a weighted sum of the values, with weights
w_ij = φ(q_i)·φ(k_j) / (N · RMS_i). These depend on the values and do not sum to 1.

The factor 1/N keeps half precision in range; apart from the 1e-6 inside the root it does not change the
output. There is no learned gain after the norm, because the projection that follows can absorb it. The
block-diagonal softmax of the early layers of a TransNormer is not part of this op.

Reference: Qin, Han, Sun, Li, Kong, Barnes, Zhong, "The Devil in Linear Transformer", EMNLP 2022,
arXiv 2210.10340.
"""

import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import apply_kernel, kernel_attention
from inline.ops.tokens import count_keys, zero_masked

EPSILON = 1e-6
# The head and channel axes of (B, heads, N, d), which together form a token.
TOKEN_DIMS = (1, 3)


def transnormer_attention(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Compute NormAttention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e).
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e), with root mean square 1 over heads and e.
    """
    out = kernel_attention(apply_kernel('elu', q), apply_kernel('elu', k, key_mask), v, key_mask)
    by_token = out.transpose(1, 2)
    return F.rms_norm(by_token, by_token.shape[-2:], eps=EPSILON).transpose(1, 2)


def transnormer_attention_naive(q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
    """Naive reference of :func:`transnormer_attention` with explicit M×N weights."""
    return transnormer_attention_weights(q, k, v, key_mask=key_mask) @ zero_masked(v, key_mask)


def transnormer_attention_weights(
    q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query, (B, heads, M, N); a masked key has weight 0."""
    scores = apply_kernel('elu', q) @ apply_kernel('elu', k, key_mask).transpose(-2, -1)
    weights = scores / count_keys(k, key_mask)
    mean_square = (weights @ zero_masked(v, key_mask)).square().mean(dim=TOKEN_DIMS, keepdim=True)
    return weights / (mean_square + EPSILON).sqrt()
