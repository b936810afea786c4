"""Where in a trace the running code is."""
