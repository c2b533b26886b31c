"""Searches: the same nodes as the studies, chosen by a grid or by Optuna instead of by a table."""
