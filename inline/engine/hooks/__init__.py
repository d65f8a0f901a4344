"""MMEngine hooks: checkpoints, preemption, non-finite losses; handling of a full disk."""
