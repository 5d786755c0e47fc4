"""The controller of a standalone broker: the same decisions about topics, kept in files.

Start at `controller.py`; `changes.py` makes one change after the other durable, `adoption.py` takes
over the topics of an Apache Kafka directory.
"""
