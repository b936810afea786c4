"""Incidents that agents are known for, replayed: written the naive way, and the same inside an `ExecutionContext`."""
