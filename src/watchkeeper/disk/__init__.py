"""What files on disk have in common: SQLite, and which processes are alive."""
