"""Who is told about a run while it goes on: of what and where (`notify`), and when (`notices`)."""
