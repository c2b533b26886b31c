"""Views leave the platform as stock dense checkpoints, and come back as starting points."""
