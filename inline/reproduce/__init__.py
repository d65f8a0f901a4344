"""The paper's tables: which config makes which row, what is expected, and what was measured."""
