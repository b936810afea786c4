"""Who advises the agent, when it is asked, and what the agent is told."""
