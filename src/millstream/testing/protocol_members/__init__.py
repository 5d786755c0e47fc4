"""Members of consumer groups that speak the protocol and do nothing else."""
