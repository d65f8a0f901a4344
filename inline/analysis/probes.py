"""Two small tasks, one for each property of InLine attention: injectivity and locality.

In both, one mixer stands between tokens and a small perceptron, with no shortcut around it, and everything
but the mixer is the same: width, heads, perceptron, data, steps, learning rate.

**length.** A query is a point on one of K circles, r·u with a random direction u, and the answer is which
circle. Queries come from these points; keys and values come from a context of random tokens that is the same
for every point. So the answer can reach the perceptron through the weights of the attention only: the
queries are no keys and no values, and nothing else sees them. Local terms read values alone and are left out.
Now let φ be homogeneous, φ(c·q) = c^p φ(q) for c > 0, as identity, relu and leaky relu are. Then linear
attention gives

    w_j(c·q) = c^p φ(q)·φ(k_j) / Σ_i c^p φ(q)·φ(k_i) = w_j(q)

so points of one direction get one answer, and of K of them at most one is right: 1/K whatever was learned.
This needs three things. Projections have no bias, since W·(c·q) + b is not c·(W·q + b); with a bias plain
linear attention is blind along rays of projected queries only, and can do this task. Scores are far above the
1e-6 that :func:`inline.ops.features.divide` adds to their mean: the leak is about 1e-6 / mean. The exam holds
every direction at every length, so that guessing gives 1/K exactly. What can see the length: InLine, whose
weights differ by (s/N) (φ(c·q) − φ(q))·(φ(k_j) − φ(k̄)); softmax; and kernels that are not homogeneous: exp,
elu, a learned relu(A·x + b), Efficient's softmax over the channels of a query. Seen is not read with ease:
under the identity InLine's output is linear in the query, by a product of four matrices that begins almost
singular, and directions from all 16 channels are learned slowly (docs/probes.md). Hence circles.

**neighbour.** Each token holds one of K contents and must name that of the token to its right; the last
column has none and is not asked. No positions are given. Every map holds every content equally often, so the
multiset of tokens tells nothing, and a mixer that follows permutations of the tokens knows its own content
only. Of the N − 1 other tokens N/K have any one other content: (N/K) / (N − 1) is the most that it can reach.
A local term (InLine's residual, a convolution, LePE) finds the neighbour exactly. Positions within attention
(MLLA's rotation, cosFormer's cosine, Nyström's segments along the rows) tell near from far only.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inline.errors import UserError
from inline.models.layers import whole_map
from inline.models.mixers import MIXERS, Part, build_mixer
from inline.ops import KERNELS


@dataclass(frozen=True)
class Settings:
    """What all trainings share; chosen once for all mixers."""

    dim: int = 16
    heads: int = 2
    hidden: int = 64
    hw: tuple[int, int] = (8, 8)
    # Dimensions that directions of queries are drawn from: 2 makes circles, 16 fills all channels.
    directions: int = 2
    lengths: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    contents: int = 8
    batch: int = 16
    learning_rate: float = 1e-2
    max_grad_norm: float = 1.0
    exam: int = 256

    @property
    def tokens(self) -> int:
        return self.hw[0] * self.hw[1]


SETTINGS = Settings()
STEPS = 400
# Labels of tokens that are not asked.
IGNORED = -100


@dataclass(frozen=True)
class Score:
    """Shares of right answers: reached, by what cannot see the property, and by what sees it wholly."""

    accuracy: float
    chance: float
    best: float


class Probe(nn.Module, ABC):
    """One mixer and a perceptron that reads each of its output tokens.

    Args:
        mixer_config: ``dict(type=name, **options)``. Projections have no bias unless it says otherwise.
        classes: Answers there are.
    """

    chance: float
    best = 1.0

    def __init__(self, mixer_config: dict[str, Any], classes: int) -> None:
        super().__init__()
        # Before the mixer, so that one seed gives all mixers the same perceptron.
        self.head = nn.Sequential(
            nn.Linear(SETTINGS.dim, SETTINGS.hidden), nn.GELU(), nn.Linear(SETTINGS.hidden, classes)
        )
        self.mixer = build_mixer({'qkv_bias': False, **mixer_config}, SETTINGS.dim, SETTINGS.heads)

    @staticmethod
    @abstractmethod
    def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """So many maps to learn from, and their labels (count, N)."""

    @staticmethod
    @abstractmethod
    def exam(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """So many maps to be scored on, and their labels (count, N)."""


class LengthProbe(Probe):
    """Which of the lengths has a query? Keys and values do not depend on it."""

    chance = 1 / len(SETTINGS.lengths)
    context: Tensor

    def __init__(self, mixer_config: dict[str, Any]) -> None:
        super().__init__(mixer_config, len(SETTINGS.lengths))
        context = torch.randn(1, SETTINGS.tokens, SETTINGS.dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer('context', context)

    def forward(self, points: Tensor) -> Tensor:
        """(B, N, directions) → answers (B, N, K)."""
        return self.head(self.mixer.proj(self.mixer.attend(self.part(points))))

    def part(self, points: Tensor) -> Part:
        """Queries of the points, keys and values of the context, which are as many and have their places."""
        context = self.context.to(points.dtype).expand(len(points), -1, -1)
        queries = F.pad(points, (0, SETTINGS.dim - points.shape[-1]))
        _, make_queries = self.mixer.project(queries, SETTINGS.hw)
        v, make_keys = self.mixer.project(context, SETTINGS.hw)
        return Part(
            v=v,
            make_qk=lambda: (make_queries()[0], make_keys()[1]),
            num_heads=SETTINGS.heads,
            regions=whole_map(SETTINGS.hw),
            key_mask=None,
            channels=slice(0, SETTINGS.dim),
            x=context,
            unnormed=None,
            queries_of_x=False,
        )

    @staticmethod
    def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Points (count, N, directions) of random directions and lengths."""
        labels = torch.randint(len(SETTINGS.lengths), (count, SETTINGS.tokens), generator=generator)
        return _with_lengths(_directions(count, generator), labels), labels

    @staticmethod
    def exam(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The same with every direction at every length: count / K maps, each K times."""
        classes = len(SETTINGS.lengths)
        directions = _directions(count // classes, generator)
        first = torch.randint(classes, directions.shape[:2], generator=generator)
        labels = torch.cat([(first + turn) % classes for turn in range(classes)])
        return _with_lengths(directions.repeat(classes, 1, 1), labels), labels


class NeighbourProbe(Probe):
    """What does the token to the right hold?"""

    chance = (SETTINGS.tokens / SETTINGS.contents) / (SETTINGS.tokens - 1)

    def __init__(self, mixer_config: dict[str, Any]) -> None:
        super().__init__(mixer_config, SETTINGS.contents)
        self.embed = nn.Embedding(SETTINGS.contents, SETTINGS.dim)

    def forward(self, contents: Tensor) -> Tensor:
        """(B, N) → answers (B, N, K)."""
        x = self.embed(contents)
        return self.head(self.mixer(x, SETTINGS.hw, x))

    @staticmethod
    def sample(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Maps (count, N) that hold every content equally often, in random order."""
        order = torch.rand(count, SETTINGS.tokens, generator=generator).argsort(dim=1)
        contents = order % SETTINGS.contents
        return contents, right_neighbours(contents, SETTINGS.hw)

    @staticmethod
    def exam(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return NeighbourProbe.sample(count, generator)


def right_neighbours(contents: Tensor, hw: tuple[int, int]) -> Tensor:
    """What stands to the right of each token of maps (B, H·W), ignored in the last column."""
    return F.pad(contents.unflatten(1, hw)[:, :, 1:], (0, 1), value=IGNORED).flatten(1)


def _directions(count: int, generator: torch.Generator) -> Tensor:
    """Evenly spread, (count, N, directions)."""
    points = torch.randn(count, SETTINGS.tokens, SETTINGS.directions, generator=generator)
    return F.normalize(points, dim=-1)


def _with_lengths(directions: Tensor, labels: Tensor) -> Tensor:
    return directions * torch.tensor(SETTINGS.lengths)[labels][..., None]


PROBES: dict[str, type[LengthProbe] | type[NeighbourProbe]] = {
    'length': LengthProbe,
    'neighbour': NeighbourProbe,
}


def run_probe(task: str, mixer_config: dict[str, Any], *, seed: int = 0, steps: int = STEPS) -> Score:
    """Train one mixer on one task and score it on maps that it has not seen; the same for the same seed.

    Threads change the order of sums, and with it the last digits: give torch one, which is enough here.
    """
    if task not in PROBES:
        raise UserError(f'unknown task {task!r}: choose one of {", ".join(PROBES)}')
    if steps < 1:
        raise UserError(f'steps {steps}: must be at least 1')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probe = PROBES[task](mixer_config)
    generator = torch.Generator().manual_seed(seed)
    maps, labels = probe.exam(SETTINGS.exam, generator)
    _train(probe, steps, generator)
    with torch.no_grad():
        answers = probe(maps)
    # An answer that is no number is wrong, whatever argmax makes of it.
    right = (answers.argmax(dim=-1) == labels) & answers.isfinite().all(dim=-1)
    accuracy = right[labels != IGNORED].double().mean().item()
    return Score(accuracy, probe.chance, probe.best)


def _train(probe: Probe, steps: int, generator: torch.Generator) -> None:
    """Adam; the learning rate rises and falls within the steps."""
    parameters = list(probe.parameters())
    optimizer = torch.optim.Adam(parameters, SETTINGS.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SETTINGS.learning_rate, total_steps=steps)
    for _ in range(steps):
        maps, labels = probe.sample(SETTINGS.batch, generator)
        loss = F.cross_entropy(probe(maps).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        # Division by a sum near zero, under the identity, makes single steps enormous.
        nn.utils.clip_grad_norm_(parameters, SETTINGS.max_grad_norm)
        optimizer.step()
        schedule.step()


def _make_rows() -> dict[str, dict[str, Any]]:
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
        'CosFormer': {'type': 'CosFormer'},
        # With its usual 64 landmarks and 64 tokens it would be softmax.
        'Nystrom': {'type': 'Nystrom', 'num_landmarks': 16},
        'Nystrom-no-conv': {'type': 'Nystrom', 'num_landmarks': 16, 'conv_size': None},
        'FLatten': {'type': 'FLatten'},
        'FLatten-no-conv': {'type': 'FLatten', 'conv_size': None},
        'MLLA': {'type': 'MLLA'},
        'MLLA-no-lepe': {'type': 'MLLA', 'lepe': False},
    }
    listed = {config['type'] for config in rows.values()}
    return rows | {name: {'type': name} for name in MIXERS if name not in listed}


MIXER_ROWS = _make_rows()
