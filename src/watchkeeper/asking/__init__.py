"""How a run asks its models, and what becomes of a conversation that no longer fits them."""
