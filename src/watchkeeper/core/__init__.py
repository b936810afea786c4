"""Values and ports that every other layer shares; no I/O, no provider, no loop."""
