"""The test kit: simulated twins of the seams, a virtual-time loop, crash states.

Shipped with the package, imported by nothing in it.
"""
