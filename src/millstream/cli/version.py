"""`millstream version`: the installed version, and whether its kernels are compiled."""

import platform

import typer

from millstream import __version__


def version() -> None:
    """Show the version, the Python version, and whether the kernels are compiled."""
    kernels = _kernels()
    typer.echo(f"millstream {__version__}")
    typer.echo(f"Python     {platform.python_version()} ({platform.machine()})")
    typer.echo(f"kernels    {kernels}")


def show(is_wanted: bool) -> None:
    """`--version`: one line, for scripts."""
    if is_wanted:
        typer.echo(f"millstream {__version__}")
        raise typer.Exit


def _kernels() -> str:
    import pkgutil
    from importlib import import_module

    from millstream import kernels as selectors
    from millstream.kernels import _plain

    twins = {module.name for module in pkgutil.iter_modules(_plain.__path__)}
    names = [one.name for one in pkgutil.iter_modules(selectors.__path__) if one.name in twins]
    kernels = {name: import_module(f"millstream.kernels.{name}") for name in names}
    plain = [name for name, kernel in kernels.items() if "_plain" in _origin(kernel)]
    if not plain:
        return "compiled"
    if len(plain) == len(names):
        return "plain Python"
    return f"compiled, but plain Python for {', '.join(plain)}"


def _origin(kernel: object) -> str:
    exported = (getattr(kernel, name) for name in getattr(kernel, "__all__", ()))
    return next(str(one.__module__) for one in exported if callable(one))
