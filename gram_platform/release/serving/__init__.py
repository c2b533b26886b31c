"""A run behind an HTTP interface, where a caller's token decides which modules answer it."""
