"""The composition root: what a user calls, put together from the layers below."""
