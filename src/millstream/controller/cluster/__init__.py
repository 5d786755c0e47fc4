"""The controller of a cluster: decisions (pure) and the shells that carry them out.

docs/adr/0018 tells how the parts belong together. `plans.py` has the shape of a decision.
"""
