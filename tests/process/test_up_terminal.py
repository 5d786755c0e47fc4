"""`millstream up` on a terminal: a banner instead of log lines, and still every warning."""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.process.up_kit import MILLSTREAM


class Terminal:
    """What a person would see."""

    def __init__(self, process: "subprocess.Popen[bytes]", screen: int) -> None:
        self.process = process
        self._screen = screen
        self.text = ""

    def until(self, wanted: str, timeout_s: float = 30.0) -> str:
        """All that was shown, once it has the text."""
        deadline_s = time.monotonic() + timeout_s
        while wanted not in self.text:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self.text
            assert self._read(left_s), f"{wanted} was not shown: {self.text}"
        return self.text

    def rest(self) -> str:
        while self._read(30.0):
            pass
        return self.text

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._screen], [], [], timeout_s)[0]:
            return False
        try:
            piece = os.read(self._screen, 4096)
        except OSError:  # the other side is closed
            return False
        self.text += piece.decode().replace("\r\n", "\n")
        return bool(piece)


@contextmanager
def on_terminal(*arguments: str, stderr: int | None = None) -> Iterator[Terminal]:
    screen, inside = pty.openpty()
    process = subprocess.Popen(
        [*MILLSTREAM, "up", *arguments],
        stdout=inside,
        stderr=inside if stderr is None else stderr,
    )
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)
        os.close(screen)


def test_a_terminal_gets_four_lines_and_what_they_say_is_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with on_terminal("--port", "0", "--brokers", "2", "--data-dir", str(data)) as terminal:
        shown = terminal.until("Ctrl-C here stops all)\n")
        ready, place, metrics, after = shown.splitlines()
        assert re.fullmatch(r"ready: +127\.0\.0\.1:\d+,127\.0\.0\.1:\d+", ready)
        assert place.split() == ["data:", str(data)]
        told = re.fullmatch(
            r"metrics: +(http://127\.0\.0\.1:)(\d+)/metrics, also on .* (\d+)", metrics
        )
        assert told is not None
        for port in (told[2], told[3]):
            with urllib.request.urlopen(f"{told[1]}{port}/metrics", timeout=20) as answer:
                assert b"millstream_build_info" in answer.read()
        command = after.removeprefix("next:").partition("    (")[0]
        words = shlex.split(command.replace("python", sys.executable, 1))
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("created\tgreetings\t")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 0
        assert terminal.rest().removeprefix(shown).strip() == "stopping the brokers"


def test_warnings_and_deaths_are_shown_between(tmp_path: Path) -> None:
    """A log directory that cannot be made, a setting that is none, and a kill."""
    home = tmp_path / "broker-1"
    home.mkdir()
    (home / "server.properties").write_text(
        "broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nno.such.setting=1\n"
        f"log.dirs={home / 'data'},/proc/no-such-directory\npid.file={home / 'millstream.pid'}\n"
    )
    with on_terminal("--data-dir", str(tmp_path)) as terminal:
        shown = terminal.until("Ctrl-C here stops all)\n")
        assert "setting 'no.such.setting' is unknown and ignored" in shown
        assert "log directory offline" in shown
        assert "INFO" not in shown
        assert "{" not in shown, "people read it"
        os.kill(int((home / "millstream.pid").read_text()), signal.SIGKILL)
        assert "signal 9" in terminal.until("restart it with")


def test_log_lines_go_to_a_file_in_full_while_the_terminal_has_the_banner(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as errors:
        arguments = ("--port", "0", "--data-dir", str(tmp_path / "data"))
        with on_terminal(*arguments, stderr=errors.fileno()) as terminal:
            shown = terminal.until("Ctrl-C here stops all)\n")
    assert len(shown.splitlines()) == 4
    assert '"message": "broker started"' in log.read_text()


def test_more_is_shown_to_those_who_ask_for_it(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--data-dir", str(tmp_path), "--config", "log.level=INFO")
    with on_terminal(*arguments) as terminal:
        shown = terminal.until("Ctrl-C here stops all)\n")
    assert "broker started" in shown
    assert "{" not in shown
