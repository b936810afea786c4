"""Translators of one turn: each speaks to one kind of provider, and knows neither loop, limits nor retries."""
