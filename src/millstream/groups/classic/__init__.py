"""The classic group protocol: members compute the assignment, the coordinator keeps the order."""
