"""What is timed and how. Nothing is timed whose outputs are wrong."""
