"""Measures speed and overhead, each against a reference in the same run."""
