"""Runs below a run: the one way to start one, how deep they nest, and the run's own model for those who judge it."""
