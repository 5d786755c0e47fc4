"""Our client with real brokers: the stories, restarts, forks, idle time, the end of a process."""

import asyncio
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.client.our_client import NOW_MS, STORIES, Story, append, created
from kits.process.broker_process import broker_process
from kits.process.forked import holds_in_child
from kits.process.waiting_for import until
from millstream.client import blocking
from millstream.client.admin import NewTopic, or_raise
from millstream.client.blocking import BlockingClient, client_for
from millstream.client.cluster import Cluster
from millstream.client.errors import (
    BrokersUnreachable,
    ClientClosed,
    ConfigInvalid,
    DeadlinePassed,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.offsets import LATEST
from millstream.client.settings import ClientSettings
from millstream.model.ids import TopicPartition
from millstream.testing.broker_thread import BrokerThread

NO_FORK_WARNING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def client_of(servers: str, **configs: object) -> BlockingClient:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return BlockingClient(ClientSettings.from_configs({"bootstrap.servers": servers} | named))


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


@pytest.fixture
def client(shared: BrokerThread) -> Iterator[BlockingClient]:
    with client_of(shared.bootstrap_servers) as made:
        yield made


def threads() -> int:
    return sum(one.name == "millstream client" for one in threading.enumerate())


def threads_without_others() -> int:
    """Clients that other tests of this process have left in the cache would make room."""
    for one in list(blocking._in_use.values()):
        one.close()
    return threads()


@pytest.mark.parametrize("story", STORIES, ids=lambda one: one.__name__)
def test_story(client: BlockingClient, story: Story) -> None:
    story(client, story.__name__.replace("_", "-"))


# -- the thread


def test_nothing_starts_before_the_first_call_and_nothing_is_left(shared: BrokerThread) -> None:
    before = threads()
    made = client_of(shared.bootstrap_servers)
    assert threads() == before
    made.topics()
    assert threads() == before + 1
    made.close()
    assert threads() == before
    with pytest.raises(ClientClosed):
        made.topics()
    made.close()


def test_equal_settings_share_a_client_and_surplus_ones_rest(shared: BrokerThread) -> None:
    before = threads_without_others()
    configs = {"bootstrap.servers": shared.bootstrap_servers}
    one = client_for(configs)
    assert client_for(ClientSettings.from_configs(configs)) is one
    others = [client_for(configs | {"client.id": str(n)}) for n in range(blocking.CLIENTS_MAX + 3)]
    for other in [one, *others]:
        assert client_for(other.settings) is other
        other.topics()
    assert threads() == before + blocking.CLIENTS_MAX
    assert one.topics() == others[-1].topics()  # a client that rests works when it is used
    for other in [*others, one, *others]:  # also those that were made before, and rest
        other.topics()
        assert threads() <= before + blocking.CLIENTS_MAX
    for other in [one, *others]:
        other.close()
    assert threads() == before


def test_clients_that_were_busy_all_at_once_are_not_kept(shared: BrokerThread) -> None:
    before = threads_without_others()
    configs = {"bootstrap.servers": shared.bootstrap_servers}
    clients = [
        client_for(configs | {"client.id": f"b{n}"}) for n in range(blocking.CLIENTS_MAX + 3)
    ]
    for one in clients:
        one.borrow()
    assert threads() == before + blocking.CLIENTS_MAX + 3
    for one in clients:
        one.give_back()
    assert threads() == before + blocking.CLIENTS_MAX
    clients[0].borrow()  # it rests; while it is busy another one does
    assert threads() == before + blocking.CLIENTS_MAX
    for one in clients:
        one.close()
    assert threads() == before


def test_a_client_may_be_made_from_names_and_values(shared: BrokerThread) -> None:
    with BlockingClient({"bootstrap.servers": shared.bootstrap_servers}) as made:
        assert made.topics() is not None
    with pytest.raises(ConfigInvalid):
        BlockingClient({"bootstrap.servers": "nowhere"})


def test_calls_from_many_threads(client: BlockingClient) -> None:
    created(client, "many-threads", 4)
    found: list[int | None] = []

    def work(index: int) -> None:
        partition = TopicPartition("many-threads", index % 4)
        found.append(client.list_offsets({partition: LATEST})[partition].offset)

    callers = [threading.Thread(target=work, args=(index,)) for index in range(40)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(30)
    assert found == [0] * 40


def test_an_error_keeps_its_type_and_trace_and_can_be_pickled(client: BlockingClient) -> None:
    with pytest.raises(TopicUnknown) as caught:
        client.topics(["nobody"])
    frames = [one.name for one in traceback.extract_tb(caught.value.__traceback__)]
    assert "topics" in frames
    assert "or_raise" in frames
    assert pickle.loads(pickle.dumps(caught.value)).topic == "nobody"


def test_a_call_that_hangs_is_given_up(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "LATE_S", 0.1)

    async def for_ever(cluster: Cluster) -> None:
        await asyncio.Event().wait()

    async def times_out(cluster: Cluster) -> None:
        raise TimeoutError("of the work itself")

    with pytest.raises(DeadlinePassed):
        client.run(for_ever, timeout_s=0.1)
    with pytest.raises(TimeoutError, match="of the work itself"):
        client.run(times_out)


def test_closing_ends_a_call_of_another_thread(shared: BrokerThread) -> None:
    made = client_of("127.0.0.1:1")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            made.topics()
        except ClientClosed as error:
            errors.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    until(lambda: not made.is_idle, "the call has begun")
    made.close()
    caller.join(10)
    assert len(errors) == 1


def test_ctrl_c_ends_the_waiting(shared: BrokerThread) -> None:
    script = """
        import os, signal, sys, threading
        from millstream.client.blocking import client_for
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        client = client_for({"bootstrap.servers": "127.0.0.1:1"})
        try:
            client.topics()
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = run_script(script)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


# -- forks


@NO_FORK_WARNING
def test_a_forked_child_makes_a_loop_of_its_own(client: BlockingClient) -> None:
    created(client, "forked")
    identity = client.topics(["forked"])["forked"].topic_id

    def is_known() -> bool:
        return client.topics(["forked"], timeout_s=10)["forked"].topic_id == identity

    for _ in range(3):
        assert holds_in_child(is_known)
        # The parent's loop must still wake up when it is called.
        assert is_known()


def _in_child(servers: str) -> int:
    client = client_for({"bootstrap.servers": servers})
    return len(client.topics(pattern="pool"))


@NO_FORK_WARNING
def test_forked_workers_with_a_client_inherited_in_use(shared: BrokerThread) -> None:
    """As Spark's daemon would: the parent has used its client when workers are forked."""
    parent = client_for({"bootstrap.servers": shared.bootstrap_servers})
    or_raise(parent.create_topics([NewTopic(name="pool", partitions=1)])["pool"])
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(_in_child, [shared.bootstrap_servers] * 9)
    assert found == [1] * 9
    assert len(parent.topics(["pool"], timeout_s=10)) == 1
    parent.close()


# -- the end of a process


def run_script(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("servers", ["", "127.0.0.1:1", "10.255.255.1:9092"])
def test_a_process_ends_although_its_client_was_not_closed(
    shared: BrokerThread, servers: str
) -> None:
    """Connected, refused, and in the middle of a connection."""
    script = """
        import sys, threading
        from millstream.client.blocking import client_for
        from millstream.client.errors import ClientError
        client = client_for({"bootstrap.servers": sys.argv[1], "default.api.timeout.ms": 300})
        try:
            print(type(client.topics()).__name__)
        except ClientError as error:
            print(type(error).__name__)
    """
    begin = time.monotonic()
    done = run_script(script, servers or shared.bootstrap_servers)
    assert done.stdout == ("BrokersUnreachable\n" if servers else "dict\n")
    assert (done.stderr, done.returncode) == ("", 0)
    assert time.monotonic() - begin < 20


def test_importing_the_client_loads_and_starts_little() -> None:
    script = """
        import sys, threading
        import millstream.client.blocking
        heavy = {"numpy", "pyarrow", "pandas", "pyspark", "uvloop", "typer", "rich"}
        print(sorted(heavy & set(sys.modules)), threading.active_count())
    """
    assert run_script(script).stdout == "[] 1\n"


# -- brokers that come and go


def test_a_client_outlives_its_broker(tmp_path: Path) -> None:
    with broker_process(tmp_path) as first:
        port = int(first.bootstrap_servers.rpartition(":")[2])
        client = client_of(first.bootstrap_servers)
        created(client, "kept")
        here = TopicPartition("kept", 0)
        append(client, here, NOW_MS)
        epoch = client.list_offsets({here: LATEST})[here].leader_epoch
        first.kill()
        with pytest.raises(BrokersUnreachable, match=first.bootstrap_servers):
            client.topics(timeout_s=1)
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(client.list_offsets({here: LATEST})))
    waiting.start()
    with broker_process(tmp_path, port=port):
        waiting.join(30)
        (listed,) = found
        assert isinstance(listed, dict)
        assert listed[here].offset == 1
        assert listed[here].leader_epoch > epoch
        client.close()


def test_a_connection_that_the_broker_closed_for_idleness_is_made_again(tmp_path: Path) -> None:
    with broker_process(tmp_path, {"connections.max.idle.ms": "300"}) as broker:
        client = client_of(broker.bootstrap_servers)
        created(client, "idle")

        async def open_count(cluster: Cluster) -> int:
            routes = cluster._routes
            return sum(one.is_open for one in routes._connections._open.values())

        for _ in range(2):
            assert "idle" in client.topics()
            until(lambda: client.run(open_count) == 0, "the broker has closed it")
        assert client.list_offsets({TopicPartition("idle", 0): LATEST})
        client.close()


def test_a_topic_that_was_made_again_is_noticed(client: BlockingClient) -> None:
    old = created(client, "again")
    here = TopicPartition("again", 0)

    async def connect(cluster: Cluster) -> None:
        await cluster.leader_connection(here, topic_id=old.topic_id)

    client.run(connect)
    client.delete_topics(["again"])
    new = created(client, "again")
    with pytest.raises(TopicRecreated) as caught:
        client.run(connect)
    assert (caught.value.old_id, caught.value.new_id) == (old.topic_id, new.topic_id)


def test_a_stopped_broker_process_is_told_within_the_time(tmp_path: Path) -> None:
    """It takes connections and answers nothing: a hang that only deadlines end."""
    with broker_process(tmp_path) as broker:
        client = client_of(broker.bootstrap_servers, socket_connection_setup_timeout_ms=500)
        client.topics()
        broker.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(DeadlinePassed, match="timed out after 2 s"):
            client.topics(timeout_s=2)
        with pytest.raises(BrokersUnreachable):
            client_of(broker.bootstrap_servers, default_api_timeout_ms=1000).topics()
        assert time.monotonic() - begin < 5
        broker.process.send_signal(signal.SIGCONT)
        client.topics()
        client.close()
