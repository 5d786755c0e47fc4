"""Where a broker is, in words. Apart from connections: settings need it, and no event loop."""


def host_port(host: str, port: int) -> str:
    """An address for people, as they would write it: an IPv6 one is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
