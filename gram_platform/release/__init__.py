"""Exports views as Hugging Face checkpoints, imports checkpoints, and serves runs."""

# The largest file of weights, by default that of Hugging Face's writer.
MAX_WEIGHTS_BYTES = 5 * 10**9
