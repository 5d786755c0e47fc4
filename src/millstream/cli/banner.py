"""What `millstream up` shows on a terminal when clients can come: four lines."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from millstream.cli.supervisor import Ready

_DEFAULT_PLACES: Final = ("127.0.0.1:9092", "[::1]:9092")
"""Where our commands look for a broker if they are given no address."""


def banner(brokers: Sequence[Ready], data_dir: Path, *, command: str, is_new: bool) -> str:
    """`command` is how ours was called; `is_new`: nothing was in the data directory before."""
    places = [place for one in brokers for place in one.places]
    # Of a directory that has topics already nobody knows here which; listing them always works.
    action = "topics create greetings" if is_new else "topics list"
    server = "" if places[0] in _DEFAULT_PLACES else f" -b {places[0]}"
    lines = (
        ("ready:", ",".join(places)),
        ("data:", str(data_dir)),
        ("metrics:", _metrics([one.metrics for one in brokers if one.metrics])),
        ("next:", f"{command} {action}{server}    (in another terminal; Ctrl-C here stops all)"),
    )
    return "".join(f"{name:<9} {text}\n" for name, text in lines)


def _metrics(places: Sequence[str]) -> str:
    """The first one's address, and the ports of the others, which are on the same host."""
    if not places:
        return "not served (metrics.port is -1)"
    first = f"http://{places[0]}/metrics"
    ports = [int(one.rpartition(":")[2]) for one in places[1:]]
    return f"{first}, also on {_ports(ports)}" if ports else first


def _ports(ports: Sequence[int]) -> str:
    """`port 9405`, `ports 9405, 9407-9410`."""
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    told = [[f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    names = ", ".join(name for run in told for name in run)
    return f"port {names}" if len(ports) == 1 else f"ports {names}"


def command_name(called: str) -> str:
    """What to type for our command: as it was called, shorter where the shell finds it."""
    path = Path(called)
    if path.name != "millstream":
        return "python -m millstream"
    found = shutil.which("millstream")
    return "millstream" if found is not None and path.resolve() == Path(found).resolve() else called
