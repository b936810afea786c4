"""Twelve kinds of work, written from the definitions of the docs alone."""
