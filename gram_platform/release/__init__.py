"""Exports views as stock checkpoints, imports checkpoints, and serves runs."""

# The largest file of weights, as Hugging Face's writer has it by default.
MAX_WEIGHTS_BYTES = 5 * 10**9
