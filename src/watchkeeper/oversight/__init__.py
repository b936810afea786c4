"""Who advises the agent while it works, when it is asked, what the agent is told, what follows."""
