"""The loop that carries out a run: its driver, its tool calls, resuming and replaying, and `Adapter`."""
