"""Functions and commands in processes of their own: the call, the guard over its process, and what runs in it."""
