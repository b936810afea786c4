"""The loop that carries out a run: its driver, its model calls and tool calls, retries, compaction, and `Adapter`."""
