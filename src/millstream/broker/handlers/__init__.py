"""One module per API; `broker/requests/registry.py` says which there are, none is loaded early."""
