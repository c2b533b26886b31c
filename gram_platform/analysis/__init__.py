"""Turns losses into compute ratios, intervals, laws and tables."""
