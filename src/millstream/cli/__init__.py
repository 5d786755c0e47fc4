"""The command line: `millstream`, one module per command.

Commands import what they work with when they run, so that `millstream --help` is there at once.
"""
