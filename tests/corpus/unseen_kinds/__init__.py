"""Kinds of work whose authors had read neither the detectors nor the kinds that they were tuned on."""
