"""Fakes for tests: servers that speak the real wire formats, models that follow a script, clocks that jump."""
