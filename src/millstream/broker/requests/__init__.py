"""From a decoded request to its handler and back: dispatch, registry, context, error codes."""
