"""The live view of a run on a terminal: what it shows (`state`), how that looks (`drawing`), where it is (`screen`)."""
