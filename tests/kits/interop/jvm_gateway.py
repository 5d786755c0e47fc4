"""A bare JVM with the jars of Spark's connector, whose classes a test calls as oracles."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j import java_gateway

from millstream.testing.peers.runtimes import find_runtime

START_SECONDS_MAX = 60


class Gateway:
    """Java objects by name, and operations that Py4J lacks."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self.java: Any = gateway.jvm
        self.connector: Any = gateway.jvm.org.apache.spark.sql.kafka010

    def sequence(self, items: list[Any]) -> Any:
        """A Scala Seq."""
        found = self._gateway.jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return self.java.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

    def bare(self, class_name: str) -> Any:
        """An object whose constructor did not run: that of a stream needs a Spark session."""
        field = self.java.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
        field.setAccessible(True)
        return field.get(None).allocateInstance(self.java.java.lang.Class.forName(class_name))

    def companion(self, class_name: str) -> Any:
        """The Scala object beside a class."""
        return self.java.java.lang.Class.forName(f"{class_name}$").getField("MODULE$").get(None)

    def call_private(self, target: Any, name: str, *arguments: Any) -> Any:
        """Call the one method whose name ends with `name`."""
        methods = [
            one for one in target.getClass().getDeclaredMethods() if one.getName().endswith(name)
        ]
        assert len(methods) == 1, methods
        methods[0].setAccessible(True)
        array = self._gateway.new_array(self.java.java.lang.Object, len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        return methods[0].invoke(target, array)


@contextmanager
def jvm_gateway(jars: Path) -> Iterator[Gateway]:
    """A JVM for as long as the context lasts."""
    command = [str(find_runtime("java")), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-cp", f"{jars}/*", "py4j.GatewayServer", "--die-on-broken-pipe", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        parameters = java_gateway.GatewayParameters(port=port, auto_convert=True)
        gateway = java_gateway.JavaGateway(gateway_parameters=parameters)
        try:
            yield Gateway(gateway)
        finally:
            with suppress(Exception):
                gateway.shutdown()
            process.terminate()
            process.wait(START_SECONDS_MAX)
