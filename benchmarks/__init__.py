"""Benchmarks: each measures something against what it is compared with, in the same run."""
