"""The inspector: stored runs in a browser, read-only and on this machine alone (``watchkeeper view``).

Plain functions make what each screen shows from the store; a small server hands that out as JSON, and the built page.
"""
