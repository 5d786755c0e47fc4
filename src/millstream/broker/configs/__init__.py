"""A broker's settings: files, dynamic changes, and the requests that describe and alter them.

Start at `broker_configs.py`: the values in force. `changes.py` carries out both Alter requests.
Keys, types, defaults and rules are defined in `model/config`.
"""
