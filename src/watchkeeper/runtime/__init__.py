"""What all runs share: what a run is given, what it records, how it ended, how it waits for the user's code, what it
shares with other runs, and the door of the synchronous API.

Here nothing decides what happens next; that is done in `loop`, `oversight` and `children`.
"""
