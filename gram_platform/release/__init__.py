"""Exports views as stock dense checkpoints, imports checkpoints as starting points, and serves runs."""
