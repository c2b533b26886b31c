"""Executes nodes on Ray: one by one, on several ranks, as the graph of a study, or as the trials of a search."""
