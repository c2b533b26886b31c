"""Serves a run over HTTP; a caller's token decides which modules answer."""
