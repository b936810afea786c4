"""More kinds of work, broad on purpose; see docs for what the labels mean."""
