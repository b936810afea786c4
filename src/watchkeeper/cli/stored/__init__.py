"""What the commands print that look at stored runs: lists, sums, the story of one run, its last lines, two compared."""
