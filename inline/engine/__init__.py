"""What training needs beyond MMEngine."""
