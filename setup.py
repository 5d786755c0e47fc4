"""Builds the compiled kernels where a C compiler is present; everything else is pyproject.toml.

Each extension is optional: without a compiler the package installs all the same and the
plain-Python twins in `millstream/kernels/_plain` take over (they say so once at start).
Set MILLSTREAM_REQUIRE_KERNELS=1 to turn a failed build into an error (CI does).
"""

import os
from pathlib import Path

from setuptools import Extension, setup

COMPILED = Path("src/millstream/kernels/_compiled")
REQUIRED = os.environ.get("MILLSTREAM_REQUIRE_KERNELS") == "1"


def kernels() -> list[Extension]:
    sources = sorted(path for path in COMPILED.glob("*.py*") if path.suffix in (".py", ".pyx"))
    extensions = [
        Extension(
            f"millstream.kernels._compiled.{path.stem}",
            [str(path)],
            extra_compile_args=["-O3"],
        )
        for path in sources
        if path.name != "__init__.py"
    ]
    try:
        from Cython.Build import cythonize
    except ImportError:
        if REQUIRED:
            raise
        return []
    built = cythonize(
        extensions,
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3,
            "embedsignature": True,
            "embedsignature.format": "python",
            "binding": True,
            # Every kernel proves its bounds before it loops; MILLSTREAM_BOUNDSCHECK=1 builds
            # with Cython's own checks on top, for the fuzz tests.
            "boundscheck": os.environ.get("MILLSTREAM_BOUNDSCHECK") == "1",
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
    for extension in built:
        extension.optional = not REQUIRED  # set only now: cythonize makes new ones without it
    return built


setup(ext_modules=kernels())
