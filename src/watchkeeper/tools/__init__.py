"""Tools: what they are, what they get, what they return; resources and the filesystem port."""
