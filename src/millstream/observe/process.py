"""Resource usage of this process, from the kernel. None in a simulation."""

import os
from typing import Final, Protocol

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessFacts(Protocol):
    """Memory, descriptors and CPU time of the process."""

    def resident_bytes(self) -> int: ...

    def virtual_bytes(self) -> int: ...

    def open_descriptors(self) -> int: ...

    def descriptors_max(self) -> int: ...

    def cpu_s(self) -> float: ...


class LinuxProcess:
    """From /proc, a few microseconds each."""

    def resident_bytes(self) -> int:
        return self._pages(1) * _PAGE_BYTES

    def virtual_bytes(self) -> int:
        return self._pages(0) * _PAGE_BYTES

    def open_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing itself holds one

    def descriptors_max(self) -> int:
        import resource

        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def cpu_s(self) -> float:
        times = os.times()
        return times.user + times.system

    @staticmethod
    def _pages(position: int) -> int:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[position])
