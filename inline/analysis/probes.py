"""Two probe tasks, one for each property of InLine attention: injectivity and locality.

Both tasks train one mixer followed by a small MLP, without a skip connection. Everything else is the same for
all mixers: width, heads, MLP, data, steps, learning rate.

**length.** A query is a point on one of K circles, r·u with a random direction u, and the label is the
circle. Queries come from these points. Keys and values come from a context of random tokens that is the same
for all points. The label can therefore reach the MLP only through the attention weights; local terms read
only values and are left out. Let φ be homogeneous, φ(c·q) = c^p φ(q) for c > 0, as identity, relu and leaky
relu are. Then linear attention gives

    w_j(c·q) = c^p φ(q)·φ(k_j) / Σ_i c^p φ(q)·φ(k_i) = w_j(q)

so all points of one direction get the same prediction, which is correct for at most one of K: the accuracy is
1/K regardless of what was learned. This needs three conditions. Projections have no bias, because W·(c·q) + b
is not c·(W·q + b): with a bias, plain linear attention is only blind along rays of projected queries and can
solve the task. Scores are far above the 1e-6 that :func:`inline.ops.kernels.divide_by_score` adds to their
mean: the leak is about 1e-6 / mean. The test set contains every direction at every length, so guessing gives
exactly 1/K. The length is visible to InLine, whose weights differ by (s/N) (φ(c·q) − φ(q))·(φ(k_j) − φ(k̄));
to softmax; and to kernels that are not homogeneous: exp, elu, a learned relu(A·x + b), Efficient's softmax
over the channels of a query. Visible does not mean easy to learn: with the identity kernel, InLine's output
is linear in the query through a product of four matrices that is almost singular at initialisation, and
directions from all 16 channels are learned slowly (docs/probes.md). The task therefore uses circles.

**neighbour.** Each token has one of K classes, and the label is the class of the token to its right; the last
column has none and is ignored. No position embedding is given. Every map contains every class equally often,
so the multiset of tokens carries no information, and a permutation-equivariant mixer can use only the token's
class. Of the N − 1 other tokens, N/K have any given other class, so its best accuracy is (N/K) / (N − 1).
A local term (InLine's residual, a convolution, LePE) finds the neighbour exactly. Positions within attention
(MLLA's rotation, cosFormer's cosine, Nyström's segments along the rows) only separate near from far.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.models.layers import full_map
from inline.models.mixers import MIXERS, AttentionInputs, build_mixer
from inline.ops import KERNELS
from inline.utils.arguments import check_choice, check_positive


@dataclass(frozen=True)
class Settings:
    """Settings of all runs, the same for every mixer."""

    dim: int = 16
    heads: int = 2
    hidden: int = 64
    hw: tuple[int, int] = (8, 8)
    # Dimensions of the query directions: 2 gives circles, 16 uses all channels.
    directions: int = 2
    lengths: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    classes: int = 8
    batch: int = 16
    learning_rate: float = 1e-2
    max_grad_norm: float = 1.0
    test_maps: int = 256

    @property
    def tokens(self) -> int:
        return self.hw[0] * self.hw[1]


SETTINGS = Settings()
STEPS = 400
# Label of tokens that are not scored.
IGNORED = -100


@dataclass(frozen=True)
class Score:
    """Accuracy of a mixer, of one that is blind to the property (chance), and the best possible accuracy."""

    accuracy: float
    chance: float
    best: float


class Probe(nn.Module, ABC):
    """A mixer, followed by an MLP on each output token.

    Args:
        mixer_config: ``dict(type=name, **options)``. Projections have no bias by default.
        num_classes: Number of classes.
    """

    chance: float
    best = 1.0

    def __init__(self, mixer_config: dict[str, Any], num_classes: int) -> None:
        super().__init__()
        # Built before the mixer: a seed then gives all mixers the same MLP.
        self.head = nn.Sequential(
            nn.Linear(SETTINGS.dim, SETTINGS.hidden), nn.GELU(), nn.Linear(SETTINGS.hidden, num_classes)
        )
        self.mixer = build_mixer({'qkv_bias': False, **mixer_config}, SETTINGS.dim, SETTINGS.heads)

    @staticmethod
    @abstractmethod
    def sample_train(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return training maps and their labels (count, N)."""

    @classmethod
    def sample_test(cls, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return test maps and their labels (count, N)."""
        return cls.sample_train(count, generator)


class LengthProbe(Probe):
    """Classify the length of a query. Keys and values do not depend on it."""

    chance = 1 / len(SETTINGS.lengths)
    context: Tensor

    def __init__(self, mixer_config: dict[str, Any]) -> None:
        super().__init__(mixer_config, len(SETTINGS.lengths))
        context = torch.randn(1, SETTINGS.tokens, SETTINGS.dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer('context', context)

    def forward(self, points: Tensor) -> Tensor:
        """Map points (B, N, directions) to logits (B, N, K)."""
        return self.head(self.mixer.proj(self.mixer.attend(self.make_inputs(points))))

    def make_inputs(self, points: Tensor) -> AttentionInputs:
        """Take queries from the points, and keys and values from a context with the same layout."""
        context = self.context.to(points.dtype).expand(len(points), -1, -1)
        queries = F.pad(points, (0, SETTINGS.dim - points.shape[-1]))
        _, make_queries = self.mixer.project(queries, SETTINGS.hw)
        v, make_keys = self.mixer.project(context, SETTINGS.hw)
        return AttentionInputs(
            v=v,
            make_qk=lambda: (make_queries()[0], make_keys()[1]),
            num_heads=self.mixer.weight_heads,
            windows=full_map(SETTINGS.hw),
            key_mask=None,
            channels=slice(0, SETTINGS.dim),
            x=context,
            prenorm_x=None,
            queries_from_x=False,
        )

    @staticmethod
    def sample_train(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return points (count, N, directions) of random directions and lengths."""
        labels = torch.randint(len(SETTINGS.lengths), (count, SETTINGS.tokens), generator=generator)
        return _scale(_random_directions(count, generator), labels), labels

    @classmethod
    def sample_test(cls, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return points with every direction at every length: count / K maps, each K times."""
        classes = len(SETTINGS.lengths)
        directions = _random_directions(count // classes, generator)
        first = torch.randint(classes, directions.shape[:2], generator=generator)
        labels = torch.cat([(first + shift) % classes for shift in range(classes)])
        return _scale(directions.repeat(classes, 1, 1), labels), labels


class NeighborProbe(Probe):
    """Classify the token to the right."""

    chance = (SETTINGS.tokens / SETTINGS.classes) / (SETTINGS.tokens - 1)

    def __init__(self, mixer_config: dict[str, Any]) -> None:
        super().__init__(mixer_config, SETTINGS.classes)
        self.embed = nn.Embedding(SETTINGS.classes, SETTINGS.dim)

    def forward(self, classes: Tensor) -> Tensor:
        """Map the classes of the tokens (B, N) to logits (B, N, K)."""
        x = self.embed(classes)
        return self.head(self.mixer(x, SETTINGS.hw, x))

    @staticmethod
    def sample_train(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return maps (count, N) that contain every class equally often, in random order."""
        order = torch.rand(count, SETTINGS.tokens, generator=generator).argsort(dim=1)
        classes = order % SETTINGS.classes
        return classes, right_neighbors(classes, SETTINGS.hw)


def right_neighbors(classes: Tensor, hw: tuple[int, int]) -> Tensor:
    """Return the class to the right of each token of maps (B, H·W); IGNORED in the last column."""
    return F.pad(classes.unflatten(1, hw)[:, :, 1:], (0, 1), value=IGNORED).flatten(1)


def _random_directions(count: int, generator: torch.Generator) -> Tensor:
    """Return uniformly distributed unit vectors, (count, N, directions)."""
    points = torch.randn(count, SETTINGS.tokens, SETTINGS.directions, generator=generator)
    return F.normalize(points, dim=-1)


def _scale(directions: Tensor, labels: Tensor) -> Tensor:
    return directions * torch.tensor(SETTINGS.lengths)[labels][..., None]


PROBES: dict[str, type[LengthProbe] | type[NeighborProbe]] = {
    'length': LengthProbe,
    'neighbour': NeighborProbe,
}


def run_probe(task: str, mixer_config: dict[str, Any], *, seed: int = 0, steps: int = STEPS) -> Score:
    """Train one mixer on one task and score it on unseen maps.

    The result is deterministic for a seed with one torch thread. More threads change the order of sums.
    """
    check_choice('unknown task', task, PROBES)
    check_positive('steps', steps)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = PROBES[task](mixer_config)
    generator = torch.Generator().manual_seed(seed)
    maps, labels = probe.sample_test(SETTINGS.test_maps, generator)
    _train(probe, steps, generator)
    with torch.no_grad():
        logits = probe(maps)
    # Count non-finite predictions as wrong, regardless of what argmax returns.
    correct = (logits.argmax(dim=-1) == labels) & logits.isfinite().all(dim=-1)
    accuracy = correct[labels != IGNORED].double().mean().item()
    return Score(accuracy, probe.chance, probe.best)


def _train(probe: Probe, steps: int, generator: torch.Generator) -> None:
    """Train with Adam and a one-cycle learning rate schedule."""
    parameters = list(probe.parameters())
    optimizer = torch.optim.Adam(parameters, SETTINGS.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SETTINGS.learning_rate, total_steps=steps)
    for _ in range(steps):
        maps, labels = probe.sample_train(SETTINGS.batch, generator)
        loss = F.cross_entropy(probe(maps).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        # With the identity kernel, division by a sum near zero causes huge gradients in single steps.
        nn.utils.clip_grad_norm_(parameters, SETTINGS.max_grad_norm)
        optimizer.step()
        schedule.step()


def _make_mixer_rows() -> dict[str, dict[str, Any]]:
    kernels = [*KERNELS, 'affine_relu']
    rows: dict[str, dict[str, Any]] = {
        'InLine': {'type': 'InLine'},
        'InLine-no-residual': {'type': 'InLine', 'residual': False},
        'InLine-not-injective': {'type': 'InLine', 'injective': False},
        'InLine-neither': {'type': 'InLine', 'injective': False, 'residual': False},
    }
    rows |= {f'InLine-{name}': {'type': 'InLine', 'kernel': name} for name in kernels if name != 'identity'}
    rows |= {f'Linear-{name}': {'type': 'Linear', 'kernel': name} for name in kernels}
    rows |= {
        'Linear-relu-bias': {'type': 'Linear', 'kernel': 'relu', 'qkv_bias': True},
        'Softmax': {'type': 'Softmax'},
        'Efficient': {'type': 'Efficient'},
        'TransNormer': {'type': 'TransNormer'},
        'TransNormer-no-lrpe': {'type': 'TransNormer', 'lrpe': False},
        'CosFormer': {'type': 'CosFormer'},
        # With their defaults of 64 landmarks or tokens per block, 64 tokens would make these softmax.
        'DiagAttention': {'type': 'DiagAttention', 'block_size': 16},
        'Nystrom': {'type': 'Nystrom', 'num_landmarks': 16},
        'Nystrom-conv': {'type': 'Nystrom', 'num_landmarks': 16, 'conv_size': 3},
        'FLatten': {'type': 'FLatten'},
        'FLatten-no-conv': {'type': 'FLatten', 'conv_size': None},
        'MLLA': {'type': 'MLLA'},
        'MLLA-no-lepe': {'type': 'MLLA', 'lepe': False},
    }
    listed = {config['type'] for config in rows.values()}
    return rows | {name: {'type': name} for name in MIXERS if name not in listed}


MIXER_ROWS = _make_mixer_rows()
