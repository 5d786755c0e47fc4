"""Network namespaces for the nodes of a test, with links that can be cut."""
