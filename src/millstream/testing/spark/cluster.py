"""A standalone Spark cluster on loopback: a master and workers, each a real process."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.peers.kafka import free_ports
from millstream.testing.spark.sessions import SHORT_LIVED_JVM
from millstream.testing.wait_until import wait_until

START_MAX_S: Final = 120.0
STOP_MAX_S: Final = 30.0
DAEMON_MEMORY: Final = "256m"
EXECUTOR_MEMORY: Final = "512m"


class StandaloneCluster:
    """Starts on entry. Executors run this interpreter and this source tree, as an installed
    package would be found on every machine of a cluster.
    """

    def __init__(self, directory: Path, *, workers: int = 2, cores_per_worker: int = 1) -> None:
        self._directory = directory
        self._workers = workers
        self._cores = cores_per_worker
        (port,) = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._port = port
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def session_settings(self) -> dict[str, str]:
        """For the session that uses it: one executor on each worker."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
            "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
            "spark.executor.cores": str(self._cores),
            "spark.cores.max": str(self._cores * self._workers),
        }

    def start(self) -> Self:
        """Returns when all workers are registered. Raises ChaosFailed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        network = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._spawn("master", "master.Master", *network, "--port", str(self._port))
        self._wait_for("master", "I have been elected leader", 1)
        for number in range(self._workers):
            name = f"worker-{number}"
            size = ["--cores", str(self._cores), "--memory", "1g"]
            work = ["--work-dir", str(self._directory / name)]
            self._spawn(name, "worker.Worker", *network, *size, *work, self.master)
        self._wait_for("master", "Registering worker", self._workers)
        return self

    def close(self) -> None:
        """Workers first: they take their executors with them."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(STOP_MAX_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_MAX_S)
        self._processes.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, name: str, kind: str, *arguments: str) -> None:
        import pyspark

        spark_directory = Path(pyspark.__file__).parent
        command = [str(spark_directory / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark_directory),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JVM,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603
                [*command, *arguments], stdout=log, stderr=log, env=environment
            )
        self._processes.append(process)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _wait_for(self, name: str, line: str, times: int) -> None:
        def is_there() -> bool:
            if any(one.poll() is not None for one in self._processes):
                raise ChaosFailed(f"a process of the cluster ended; see {self._directory}")
            return self._log(name).read_text(errors="replace").count(line) >= times

        wait_until(is_there, f"{line} in {self._log(name)}", timeout_s=START_MAX_S)
