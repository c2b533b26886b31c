"""Executing nodes: one by one, on several ranks, and as a graph on Ray."""
