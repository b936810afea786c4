"""Fakes for tests: servers that speak the real wire formats, models that follow a script, clocks that jump.

Importing anything from here blocks every real provider for the rest of the process, so that a test which forgot its
fake fails instead of spending money; ``watchkeeper.adapters.remote.allow_remote(True)`` lifts the block.
"""

from watchkeeper.adapters.remote import allow_remote

allow_remote(False)
