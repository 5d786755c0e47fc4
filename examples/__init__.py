"""Programs to start from. Each says at its top how it is run."""
