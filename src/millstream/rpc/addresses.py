"""Text of addresses. Separate from connections: settings need it without an event loop."""


def host_port(host: str, port: int) -> str:
    """An address as people write it: an IPv6 one is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
