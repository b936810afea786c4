"""What all runs have in common: a run's plan and scope, its events, its result, waiting for the user's code, budgets
shared between runs, and the portal of the synchronous API.

Nothing here decides what a run does next; that is decided in `loop`, `oversight` and `children`.
"""
