"""All logs of a broker over its log directories: start, create, delete, upkeep, stop."""
