"""The turn loop as a pure state machine: signals in, commands out; no I/O, no clock."""
