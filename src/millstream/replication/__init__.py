"""Leaders and followers of partitions: appends, acknowledgements, in-sync replicas.

Start at `partition.py` (the leader of one partition: when a record is committed), `leader.py` (what
it knows of its followers, pure), `follower.py` (what a follower fetches and where it truncates) and
`partitions.py` (all replicas of this broker). `fetchers.py` fetches from other leaders.
docs/replication.md explains it.
"""
