"""Models on this machine: files, engine process, and tool use in steps."""
