"""The coordinator's thin shell: it loads, writes, waits and answers, and decides nothing."""
