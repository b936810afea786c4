"""Kinds of work that the detectors were tuned on."""
