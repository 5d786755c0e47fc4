"""A shop's orders through Spark: `python -m examples.shop`, or `make demo`.

Start reading with `pipeline.py`: it is all that a program of your own needs. The rest plays the
shop, watches, and checks:

- `catalogue.py`, `events.py`: what the shop sells, and a day of orders, both from a seed
- `traffic.py`: the process that writes that day to a broker
- `expected.py`: what the pipeline must find, computed from the seed alone
- `results.py`, `checks.py`: what it did find, and where that differs
- `progress.py`, `terminal.py`, `picture.py`: how it went, while it runs and afterwards
- `processes.py`, `run.py`: all of it, one after the other
"""
