"""The settings of topics and brokers: names, types, defaults and rules, without any value in force.

`broker/configs/broker_configs.py` puts values over them; this package only says what a value
may be.
"""

from millstream.model.config.topic_keys import validate_topic_configs

__all__ = ["validate_topic_configs"]
