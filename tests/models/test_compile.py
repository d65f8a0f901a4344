"""Every family compiles to one graph with dynamic image sizes."""

import pytest
import torch

from tests.models.families import FAMILIES, build

STAGE = {'embed_dims': (8,), 'depths': (1,), 'num_heads': (2,), 'mlp_ratios': (2,)}
SMALL = {
    'InLineDeiT': {'embed_dims': 8, 'depth': 1, 'num_heads': 2},
    'InLinePVT': STAGE,
    'InLineSwin': {**STAGE, 'depths': (2,), 'inline_depths': (1,)},
    # A stage with InLine and a stage with stripes.
    'InLineCSwin': {
        'embed_dims': (8, 16),
        'depths': (1, 1),
        'num_heads': (2, 2),
        'mlp_ratios': (2, 2),
        'inline_depths': (1, 0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize('family', FAMILIES)
def test_family_compiles_without_graph_breaks(family: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    arch = SMALL[family]
    model = build(family, arch=arch, out_indices=(len(arch.get('depths', (1,))) - 1,))
    # The eager backend checks tracing only, which is the part that can break.
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend='eager')
    for size in ((2, 3, 128, 96), (3, 3, 160, 96)):
        image = torch.randn(size)
        torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
