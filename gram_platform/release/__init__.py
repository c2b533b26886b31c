"""Exports views as stock dense checkpoints, imports checkpoints as starting points, and serves runs."""

MAX_WEIGHTS_BYTES = 5 * 10**9  # of a file of weights: the default of Hugging Face's writer
