"""Starts a private Ray cluster on this machine, runs one job on it with `ray job submit`, and stops the cluster."""
