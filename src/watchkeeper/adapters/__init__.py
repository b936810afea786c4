"""Translators of one turn: each one sends one turn to one kind of provider. None has a loop, limits or retries."""
