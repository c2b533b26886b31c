"""Trains, evaluates and samples models; needs only torch and numpy."""
