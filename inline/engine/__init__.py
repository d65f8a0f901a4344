"""Training and testing on top of MMEngine: launch, config checks, loops, hooks, distributed runs."""
