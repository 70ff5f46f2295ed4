"""Text as tokens, and what translations are worth, for the program (src/lab/text/)."""
