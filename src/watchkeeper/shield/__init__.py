"""What may refuse a call beside its limits: hooks, the pipeline that asks them, circuit breakers."""
