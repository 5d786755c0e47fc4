"""What `millstream up` prints on a terminal once clients can connect: four lines."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millstream.cli.supervisor import Ready

_DEFAULT_ADDRESSES: Final = ("127.0.0.1:9092", "[::1]:9092")
"""Where our commands connect to if they are given no address."""


def banner(brokers: Sequence[Ready], data_dir: Path, *, command: str, is_new: bool) -> str:
    """`command` is how ours was called; `is_new`: nothing was in the data directory before."""
    addresses = [address for one in brokers for address in one.addresses]
    # A directory that was used before has topics whose names are not known here; listing works.
    action = "topics create greetings" if is_new else "topics list"
    server = "" if addresses[0] in _DEFAULT_ADDRESSES else f" -b {addresses[0]}"
    lines = (
        ("ready:", ",".join(addresses)),
        ("data:", str(data_dir)),
        ("metrics:", _metrics([one.metrics for one in brokers if one.metrics])),
        ("next:", f"{command} {action}{server}    (in another terminal; Ctrl-C here stops all)"),
    )
    return "".join(f"{name:<9} {text}\n" for name, text in lines)


def _metrics(addresses: Sequence[str]) -> str:
    """The first one's address, and the ports of the others, which are on the same host."""
    if not addresses:
        return "not served (metrics.port is -1)"
    first = f"http://{addresses[0]}/metrics"
    ports = [int(one.rpartition(":")[2]) for one in addresses[1:]]
    return f"{first}, also on {_ports(ports)}" if ports else first


def _ports(ports: Sequence[int]) -> str:
    """`port 9405`, `ports 9405, 9407-9410`."""
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    texts = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    names = ", ".join(name for run in texts for name in run)
    return f"port {names}" if len(ports) == 1 else f"ports {names}"


def command_name(called: str) -> str:
    """What to type for our command: as it was called, or `millstream` if that is on the PATH."""
    path = Path(called)
    if path.name != "millstream":
        return "python -m millstream"
    found = shutil.which("millstream")
    return "millstream" if found is not None and path.resolve() == Path(found).resolve() else called
