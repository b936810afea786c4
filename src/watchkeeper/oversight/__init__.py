"""Observers and feedback providers: when they are asked, what the agent is told, and escalation."""
