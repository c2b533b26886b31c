"""Computes numbers from stored results: compute ratios, intervals, laws, tables. Takes frames, trains nothing."""
