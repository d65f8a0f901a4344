"""PolaFormer's polarity-aware linear attention: products of equal and of opposite sign are kept apart.

Queries and keys are split into their positive and negative parts, each raised to a learned power p per
channel. One half of a head's values is weighted by the products of equal sign, the other half by those of
opposite sign, so the information of negative products is not lost as it is after a relu:

    w⁺_ij = s⁺_ij / Σ_j s⁺_ij,        s⁺_ij = q⁺_i·k⁺_j + q⁻_i·k⁻_j        for the first half of the values
    w⁻_ij = s⁻_ij / Σ_j s⁻_ij,        s⁻_ij = q⁻_i·k⁺_j + q⁺_i·k⁻_j        for the second half
    x⁺ = relu(x / scale)^p,        x⁻ = relu(−x / scale)^p

with a learned positive ``scale`` per channel. As in the authors' code 1e-6 is added to the mean of the scores
over the keys. The positional encoding of the keys, the depthwise convolution of the values and the output
gate are parts of the mixer.

Reference: Meng, Luo, Li, Jiang, Zhang, "PolaFormer: Polarity-aware Linear Attention for Vision Transformers",
ICLR 2025, arXiv 2501.15061.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from inline.ops.kernels import divide_by_score, kernel_attention, mean_score
from inline.ops.tokens import count_keys, full_precision, zero_masked


@full_precision
def polaformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    *,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Compute polarity-aware linear attention with cost linear in the number of tokens.

    Args:
        q: Queries (B, heads, M, d).
        k: Keys (B, heads, N, d).
        v: Values (B, heads, N, e), e even.
        power: Exponents p (heads, d), greater than 1.
        scale: Positive divisors (heads, d); None for 1.
        key_mask: (B, N), True for the keys to attend to; None for all.

    Returns:
        (B, heads, M, e).
    """
    same_q, opposite_q, phi_k = _features(q, k, power, scale, key_mask)
    halves = [
        divide_by_score(kernel_attention(phi_q, phi_k, half, key_mask), mean_score(phi_q, phi_k, key_mask))
        for phi_q, half in zip((same_q, opposite_q), v.chunk(2, dim=-1), strict=True)
    ]
    return torch.cat(halves, dim=-1)


def polaformer_attention_naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    power: Tensor,
    *,
    scale: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Naive reference of :func:`polaformer_attention`: every product by its sign, with M×N weights."""
    k = zero_masked(k, key_mask)
    if scale is not None:
        q, k = q / scale[:, None], k / scale[:, None]
    # (B, heads, M, N, d): |q|^p |k|^p by channel, and the sign of the product.
    exponent = power[:, None, None]
    magnitude = q[..., :, None, :].abs() ** exponent * k[..., None, :, :].abs() ** exponent
    sign = q[..., :, None, :].sign() * k[..., None, :, :].sign()
    outs = []
    for wanted, values in zip((1, -1), zero_masked(v, key_mask).chunk(2, dim=-1), strict=True):
        scores = (magnitude * (sign == wanted)).sum(dim=-1) / count_keys(k, key_mask)
        outs.append(scores / (scores.sum(dim=-1, keepdim=True) + 1e-6) @ values)
    return torch.cat(outs, dim=-1)


@full_precision
def polaformer_attention_weights(
    q: Tensor, k: Tensor, power: Tensor, *, scale: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """Return the weight of every key for every query, (B, 2·heads, M, N); a masked key has weight 0.

    Heads 2h and 2h + 1 are the weights of equal and of opposite sign in head h of the queries.
    """
    same_q, opposite_q, phi_k = _features(q, k, power, scale, key_mask)
    scores = torch.stack([same_q, opposite_q], dim=2) @ phi_k.transpose(-2, -1).unsqueeze(2)
    scores = scores.flatten(1, 2) / count_keys(k, key_mask)
    return divide_by_score(scores, scores.sum(dim=-1, keepdim=True))


def _features(
    q: Tensor, k: Tensor, power: Tensor, scale: Tensor | None, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features whose products are s⁺ and s⁻: of queries for s⁺, of queries for s⁻, of keys."""
    (q_plus, q_minus), (k_plus, k_minus) = (_polarize(x, power, scale) for x in (q, zero_masked(k, key_mask)))
    return (
        torch.cat([q_plus, q_minus], dim=-1),
        torch.cat([q_minus, q_plus], dim=-1),
        torch.cat([k_plus, k_minus], dim=-1),
    )


def _polarize(x: Tensor, power: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x⁺ and x⁻ for x (B, heads, N, d); both are 0 where x is 0."""
    if scale is not None:
        x = x / scale[:, None]
    return F.relu(x) ** power[:, None], F.relu(-x) ** power[:, None]
