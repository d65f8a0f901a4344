# One narrow block per stage: trains in seconds.
nano = dict(embed_dims=(24, 48, 64, 96), depths=(1, 1, 1, 1), num_heads=(2, 4, 4, 6), mlp_ratios=(3, 3, 3, 3))
