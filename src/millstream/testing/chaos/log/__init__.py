"""A log's writer killed in the middle of its writes."""
