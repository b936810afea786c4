"""Runs below a run: the one way to start one, and the run's own model as an adapter for judges."""
