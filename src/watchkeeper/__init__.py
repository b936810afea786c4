"""Watchkeeper: a runtime for LLM agents that work unattended."""

__all__ = ["__version__"]

__version__ = "0.1.0"
