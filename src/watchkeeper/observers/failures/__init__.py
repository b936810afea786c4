"""Whether a tool call failed (`refusals`), and of what cause (`causes`), by what its result says."""
