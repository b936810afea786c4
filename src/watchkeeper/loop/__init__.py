"""The one loop: the driver of the turn machine, model calls, tool calls, compaction, and evaluation."""
