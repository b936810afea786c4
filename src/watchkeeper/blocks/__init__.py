"""Contained blocks: code of others inside limits. Public name: `watchkeeper.contained`."""
