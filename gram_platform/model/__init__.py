"""The transformer with auxiliary modules; needs torch alone."""
