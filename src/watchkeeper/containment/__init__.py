"""The gate: every call of a run passes it, and nothing a run does can exceed what it was given."""
