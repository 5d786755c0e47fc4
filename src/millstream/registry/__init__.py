"""The schema registry and its REST interface. Not built yet."""
