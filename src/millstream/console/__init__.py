"""The web console: cluster, topics, messages, groups, pipelines. Not built yet."""
