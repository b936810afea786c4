"""Watchkeeper: a runtime for LLM agents that work unattended."""

__version__ = "0.1.0"
