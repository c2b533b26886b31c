"""Defines the transformer with auxiliary modules; needs only torch."""
