"""Go programs, built with the modules in `go.sum`, by a compiler that is new enough.

Distributions are often behind what a module requires. A compiler that is too old still fetches
the right one: Go's own compilers are published as a module, and this one is checked like any
other.
"""

import json
import os
import platform
import re
from pathlib import Path
from typing import Final

from millstream.testing.peers.builds import built_once, run_build
from millstream.testing.peers.runtimes import find_runtime

GO_FILES: Final = ("*.go", "go.mod", "go.sum")
TOOLCHAIN: Final = "golang.org/toolchain@v0.0.1-go{version}.linux-{machine}"
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_VERSION: Final = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")
_WANTED: Final = re.compile(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", re.MULTILINE)

Version = tuple[int, int, int]


def go_program(cache: Path, name: str, source: Path) -> Path:
    """The built program."""
    files = [path for pattern in GO_FILES for path in source.glob(pattern)]

    def build_into(directory: Path) -> None:
        compiler = go_compiler(source)
        command = [str(compiler), "build", "-buildvcs=false", "-trimpath", "-mod=readonly"]
        command += ["-o", str(directory / name), "."]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        run_build(command, directory=source, environment=environment)

    return built_once(cache, name, files, build_into) / name


def go_compiler(source: Path) -> Path:
    """One that is new enough for `go.mod`: the machine's, or else the published one."""
    wanted = _version(_WANTED, (source / "go.mod").read_text())
    found = find_runtime("go")
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    output = run_build([str(found), "version"], directory=source.parent, environment=environment)
    if _version(_VERSION, output) >= wanted:
        return found
    return _published_compiler(found, wanted)


def _published_compiler(older: Path, wanted: Version) -> Path:
    machine = MACHINES[platform.machine()]
    module = TOOLCHAIN.format(version=".".join(map(str, wanted)), machine=machine)
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GO111MODULE": "on", "GOFLAGS": ""}
    command = [str(older), "mod", "download", "-json", module]
    # Outside every module, or an old compiler would refuse the `go.mod` that requires a new one.
    root = Path(json.loads(run_build(command, directory=Path("/"), environment=environment))["Dir"])
    # Modules are stored without execute permission.
    tools = [*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")]
    for path in tools:
        if path.is_file():
            path.chmod(0o755)
    return root / "bin" / "go"


def _version(pattern: re.Pattern[str], text: str) -> Version:
    found = pattern.search(text)
    if found is None:
        raise ValueError(f"no version of Go in {text!r}")
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)
