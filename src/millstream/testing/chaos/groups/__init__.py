"""Consumer groups of foreign clients under chaos."""
