"""Runs below a run: how one is started, how deep they nest, and the run's model for checkers and observers."""
