"""How a run asks its models."""
