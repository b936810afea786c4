"""The driver: executes the turn machine's commands through the gate and records them on the log."""
