"""Runs searches: studies whose settings come from a grid or from Optuna, trial by trial."""
