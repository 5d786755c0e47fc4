"""Pure cluster decisions (election, assignment, ISR) and their shell. Not built yet."""
