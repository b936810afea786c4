"""The one log of a run, and the typed state that is a fold of it."""
