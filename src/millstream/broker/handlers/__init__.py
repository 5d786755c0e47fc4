"""One module per API. `millstream.broker.registry` says which there are; none is loaded early."""
