"""The controller of a standalone broker: decisions kept in files of its own."""
