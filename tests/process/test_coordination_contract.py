"""What the coordination port promises, by whichever service: the simulated keeper, the embedded
one in a process of its own, a real ZooKeeper and a real ensemble of three.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.coordination.coordination_kit import (
    SHORT_SESSION_MS,
    RealWorld,
    SimulatedWorld,
    Story,
    World,
    eventually,
    eventually_true,
    unique_root,
)
from kits.process.keeper_process import keeper_process
from millstream.coordination import errors
from millstream.coordination.credentials import Credentials
from millstream.coordination.port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    SessionState,
    Set,
    WatchEvent,
    WatchKind,
)
from millstream.coordination.proofs import create_with_proof, delete_with_proof, set_with_proof
from millstream.observe.redaction import Secret
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.peers.zookeeper import zookeeper_servers

SEED = 20
Play = Callable[[Story], None]


@contextmanager
def servers_of(kind: str, directory: Path) -> Iterator[list[tuple[str, int]]]:
    if kind == "keeper":
        with keeper_process(directory) as keeper:
            yield [("127.0.0.1", keeper.port)]
        return
    require_runtime("java")
    with zookeeper_servers(directory, 3 if kind == "ensemble" else 1) as servers:
        yield [("127.0.0.1", server.port) for server in servers]


@pytest.fixture(scope="module", params=["simulated", "keeper", "zookeeper", "ensemble"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, int]] | None]:
    """None for the simulated world, which every story has for itself."""
    if request.param == "simulated":
        yield None
        return
    with servers_of(request.param, tmp_path_factory.mktemp("coordination")) as found:
        yield found


@pytest.fixture
def play(servers: list[tuple[str, int]] | None) -> Play:
    def played(story: Story) -> None:
        world = SimulatedWorld(SEED) if servers is None else RealWorld(servers, unique_root())
        world.play(story)

    return played


# -- nodes -------------------------------------------------------------------------------------


def test_a_node_is_created_read_changed_and_deleted(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/a"
        created = await one.create(path, b"first")
        assert created.path == path
        assert created.stat.czxid == created.stat.mzxid == created.stat.pzxid > 0
        assert (created.stat.version, created.stat.owner) == (0, 0)
        assert created.stat.data_length == 5
        data, stat = await one.get(path)
        assert (data, stat) == (b"first", created.stat)
        changed = await one.set(path, b"second", version=0)
        assert changed.version == 1
        assert changed.mzxid > changed.czxid == stat.czxid
        assert (await one.get(path)).data == b"second"
        assert await one.exists(path) == changed
        await one.delete(path, version=1)
        assert await one.exists(path) is None

    play(story)


def test_what_is_refused_says_why_and_changes_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/a"
        await one.create(path)
        await one.create(f"{path}/child")
        await one.create(f"{world.root}/e", kind=NodeKind.EPHEMERAL)
        before = await one.exists(path)
        with pytest.raises(errors.NodeExists):
            await one.create(path)
        with pytest.raises(errors.NoNode):
            await one.create(f"{world.root}/none/b")
        with pytest.raises(errors.NotEmpty):
            await one.delete(path, version=ANY_VERSION)
        with pytest.raises(errors.BadVersion):
            await one.set(path, b"x", version=7)
        with pytest.raises(errors.BadVersion):
            await one.delete(f"{path}/child", version=7)
        with pytest.raises(errors.NoChildrenForEphemerals):
            await one.create(f"{world.root}/e/child")
        with pytest.raises(errors.NoNode):
            await one.get(f"{world.root}/none")
        with pytest.raises(errors.NoNode):
            await one.children(f"{world.root}/none")
        with pytest.raises(errors.NoNode):
            await one.set(f"{world.root}/none", b"", version=ANY_VERSION)
        with pytest.raises(errors.NoNode):
            await one.delete(f"{world.root}/none", version=ANY_VERSION)
        assert await one.exists(path) == before

    play(story)


@pytest.mark.parametrize("path", ["no-slash", "/ends/", "/a//b", "/a/../b", "/nul\0", ""])
def test_bad_paths_are_refused(play: Play, path: str) -> None:
    async def story(world: World) -> None:
        one = await world.open("one")
        with pytest.raises(errors.BadArguments):
            await one.create(path)

    play(story)


def test_data_may_be_empty_and_large(play: Play) -> None:
    async def story(world: World) -> None:
        one = await world.open("one")
        large = bytes(range(256)) * 2000
        await one.create(f"{world.root}/large", large)
        await one.create(f"{world.root}/empty")
        assert (await one.get(f"{world.root}/large")).data == large
        assert (await one.get(f"{world.root}/empty")).data == b""

    play(story)


def test_children_are_listed_and_counted(play: Play) -> None:
    async def story(world: World) -> None:
        one = await world.open("one")
        for name in ("b", "a", "c"):
            await one.create(f"{world.root}/{name}")
        await one.delete(f"{world.root}/b", version=ANY_VERSION)
        names, stat = await one.children(world.root)
        assert names == ["a", "c"]
        assert stat.children_count == 2
        assert stat.children_version == 4
        assert stat.version == 0
        assert stat.pzxid > stat.mzxid

    play(story)


def test_sequential_names_grow_and_are_never_given_twice(play: Play) -> None:
    async def story(world: World) -> None:
        one, prefix = await world.open("one"), f"{world.root}/n-"
        first = await one.create(prefix, kind=NodeKind.PERSISTENT_SEQUENTIAL)
        second = await one.create(prefix, kind=NodeKind.EPHEMERAL_SEQUENTIAL)
        await one.delete(second.path, version=ANY_VERSION)
        await one.create(f"{world.root}/other")
        third = await one.create(prefix, kind=NodeKind.PERSISTENT_SEQUENTIAL)
        assert first.path == f"{prefix}0000000000"
        assert second.path == f"{prefix}0000000001"
        assert second.stat.owner == one.session_id
        assert third.path == f"{prefix}0000000003"

    play(story)


def test_of_two_versioned_writes_one_wins(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/cas"
        await one.create(path)
        results = await asyncio.gather(
            one.set(path, b"one", version=0),
            two.set(path, b"two", version=0),
            return_exceptions=True,
        )
        winners = [result for result in results if isinstance(result, NodeStat)]
        assert len(winners) == 1
        assert any(isinstance(result, errors.BadVersion) for result in results)
        data, stat = await one.get(path)
        assert stat.version == 1
        assert data == (b"one" if isinstance(results[0], NodeStat) else b"two")

    play(story)


# -- access ------------------------------------------------------------------------------------


def test_without_the_secret_nothing_is_read_changed_or_deleted(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/a"
        await one.create(path, b"mine")
        await one.multi([Create(path=f"{path}/b", data=b"too")])
        before = await one.get(path)
        guest = await world.open("guest", credentials=None)
        for node in (path, f"{path}/b", world.root):
            with pytest.raises(errors.NotAllowed):
                await guest.get(node)
            with pytest.raises(errors.NotAllowed):
                await guest.children(node)
            with pytest.raises(errors.NotAllowed):
                await guest.set(node, b"", version=ANY_VERSION)
            with pytest.raises(errors.NotAllowed):
                await guest.create(f"{node}/of-guest")
        with pytest.raises(errors.NotAllowed):
            await guest.delete(f"{path}/b", version=ANY_VERSION)
        with pytest.raises((errors.NotAllowed, errors.MultiFailed)):
            await guest.multi([Delete(path=f"{path}/b", version=ANY_VERSION)])
        assert await one.get(path) == before
        assert (await one.get(f"{path}/b")).data == b"too"
        assert (await one.children(world.root)).names == ["a"]

    play(story)


def test_another_secret_is_none(play: Play) -> None:
    """The keeper refuses it at once; ZooKeeper takes it for another user's."""

    async def story(world: World) -> None:
        one = await world.open("one")
        await one.create(f"{world.root}/a", b"mine")
        other = Credentials(Secret("the-secret-of-another-cluster"))

        async def read_by_guest() -> None:
            guest = await world.open("guest", credentials=other)
            await guest.get(f"{world.root}/a")

        with pytest.raises((errors.AuthenticationFailed, errors.NotAllowed)):
            await read_by_guest()
        assert (await one.get(f"{world.root}/a")).data == b"mine"

    play(story)


def test_the_secret_is_proved_again_on_every_connection(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/a"
        await one.create(path, b"mine", kind=NodeKind.EPHEMERAL)
        world.cut("one")
        await eventually(world, lambda: one.state is SessionState.SUSPENDED, "it is cut off")
        world.mend("one")
        await one.connected()
        data, stat = await one.get(path)
        assert (data, stat.owner) == (b"mine", one.session_id)

    play(story)


# -- watches -----------------------------------------------------------------------------------


def test_a_watch_is_called_once_and_before_the_change_is_read(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/w"
        seen: list[WatchEvent] = []
        assert await one.exists(path, watch=seen.append) is None
        await two.create(path, b"0")
        await one.sync(path)
        assert await one.exists(path) is not None
        assert seen == [(WatchKind.CREATED, path)]
        await one.get(path, watch=seen.append)
        await two.set(path, b"1", version=0)
        await two.set(path, b"2", version=1)
        await one.sync(path)
        assert (await one.get(path)).data == b"2"
        assert seen == [(WatchKind.CREATED, path), (WatchKind.CHANGED, path)]
        await one.get(path, watch=seen.append)
        await two.delete(path, version=2)
        await one.sync(path)
        assert await one.exists(path) is None
        assert seen[2:] == [(WatchKind.DELETED, path)]

    play(story)


def test_children_are_watched_apart_from_data(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/w"
        await one.create(path)
        seen: list[WatchEvent] = []
        await one.children(path, watch=seen.append)
        await two.set(path, b"1", version=0)
        await two.create(f"{path}/child")
        await two.create(f"{path}/child2")
        await one.sync(path)
        await one.children(path)
        assert seen == [(WatchKind.CHILDREN, path)]
        await one.children(path, watch=seen.append)
        await two.set(f"{path}/child", b"x", version=0)
        await two.delete(f"{path}/child", version=1)
        await one.sync(path)
        await one.children(path)
        assert seen[1:] == [(WatchKind.CHILDREN, path)]

    play(story)


def test_every_watcher_of_a_node_is_told_and_its_own_session_too(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/w"
        await one.create(path)
        seen: list[tuple[str, WatchKind]] = []
        await one.get(path, watch=lambda event: seen.append(("get", event.kind)))
        await one.exists(path, watch=lambda event: seen.append(("exists", event.kind)))
        await one.children(path, watch=lambda event: seen.append(("children", event.kind)))
        await one.delete(path, version=0)
        await one.sync(world.root)
        assert sorted(seen) == sorted(
            (name, WatchKind.DELETED) for name in ("children", "exists", "get")
        )

    play(story)


def test_a_read_that_failed_watches_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/w"
        seen: list[WatchEvent] = []
        with pytest.raises(errors.NoNode):
            await one.get(path, watch=seen.append)
        with pytest.raises(errors.NoNode):
            await one.children(path, watch=seen.append)
        await one.create(path)
        await one.create(f"{path}/child")
        await one.sync(path)
        assert seen == []

    play(story)


# -- multi -------------------------------------------------------------------------------------


def test_a_multi_is_made_as_a_whole(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/m"
        results = await one.multi(
            [
                Create(path=path, data=b"0"),
                Create(path=f"{path}/s-", kind=NodeKind.EPHEMERAL_SEQUENTIAL),
                Set(path=path, data=b"1", version=0),
                Check(path=path, version=1),
                Create(path=f"{path}/gone"),
                Delete(path=f"{path}/gone", version=0),
            ]
        )
        assert results[:2] == [path, f"{path}/s-0000000000"]
        assert isinstance(results[2], NodeStat)
        assert results[2].version == 1
        assert results[3:] == [None, f"{path}/gone", None]
        data, stat = await one.get(path)
        assert (data, stat.version, stat.children_count) == (b"1", 1, 1)
        child = await one.exists(f"{path}/s-0000000000")
        assert child is not None
        assert child.czxid == stat.czxid == stat.mzxid
        assert child.owner == one.session_id

    play(story)


def test_a_multi_that_fails_names_the_operation_and_leaves_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/m"
        await one.create(path, b"0")
        seen: list[WatchEvent] = []
        before = await one.get(path, watch=seen.append)
        with pytest.raises(errors.MultiFailed) as failed:
            await one.multi(
                [
                    Set(path=path, data=b"1", version=0),
                    Create(path=f"{path}/child"),
                    Check(path=path, version=5),
                    Delete(path=path, version=ANY_VERSION),
                ]
            )
        assert failed.value.index == 2
        assert isinstance(failed.value.cause, errors.BadVersion)
        assert failed.value.cause.path == path
        assert await one.get(path) == before
        assert (await one.children(path)).names == []
        assert seen == []

    play(story)


def test_of_two_candidates_one_becomes_controller(play: Play) -> None:
    """The node is created and the epoch raised in one multi; the second finds both done."""

    async def story(world: World) -> None:
        epoch_path, path = f"{world.root}/epoch", f"{world.root}/controller"
        sessions = [await world.open(name) for name in ("one", "two")]
        await sessions[0].create(epoch_path, b"0")

        async def stand(session: Session) -> object:
            operations: list[Operation] = [
                Create(path=path, kind=NodeKind.EPHEMERAL),
                Set(path=epoch_path, data=b"1", version=0),
            ]
            return await session.multi(operations)

        results = await asyncio.gather(*map(stand, sessions), return_exceptions=True)
        failures = [one for one in results if isinstance(one, errors.MultiFailed)]
        assert len(failures) == 1
        assert isinstance(failures[0].cause, errors.NodeExists)
        assert (await sessions[0].get(epoch_path)).stat.version == 1

    play(story)


def test_a_multi_that_is_too_large_is_not_sent(play: Play) -> None:
    async def story(world: World) -> None:
        one = await world.open("one")
        many = [Check(path=world.root, version=0)] * 501
        with pytest.raises(errors.RequestTooLarge):
            await one.multi(many)
        large = [Set(path=world.root, data=bytes(300_000), version=0)] * 2
        with pytest.raises(errors.RequestTooLarge):
            await one.multi(large)
        await one.multi(many[:500])
        assert one.state is SessionState.CONNECTED

    play(story)


# -- sessions ----------------------------------------------------------------------------------


def test_ephemeral_nodes_go_with_their_session(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/e"
        created = await one.create(path, kind=NodeKind.EPHEMERAL)
        assert created.stat.owner == one.session_id != two.session_id
        # Another server of an ensemble may be a moment behind.
        await eventually_true(world, lambda: two.exists(path), "the other session sees it")
        seen: list[WatchEvent] = []
        await two.exists(path, watch=seen.append)
        await one.close()
        await eventually(world, lambda: seen, "the other session is told")
        assert seen == [(WatchKind.DELETED, path)]
        assert await two.exists(path) is None
        assert one.state is SessionState.LOST
        with pytest.raises(errors.SessionLost):
            await one.get(world.root)

    play(story)


def test_a_short_break_suspends_and_the_session_goes_on(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/e"
        await one.create(path, kind=NodeKind.EPHEMERAL)
        states: list[SessionState] = []
        seen: list[WatchEvent] = []
        one.add_listener(states.append)
        await one.get(path, watch=seen.append)
        await one.children(world.root, watch=seen.append)
        session_id = one.session_id
        world.cut("one")
        await eventually(world, lambda: one.state is SessionState.SUSPENDED, "suspended")
        with pytest.raises(errors.ConnectionLost) as lost:
            await one.get(path)
        assert not lost.value.is_in_doubt
        world.mend("one")
        await one.connected()
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert one.session_id == session_id
        dropped = [(WatchKind.DROPPED, path), (WatchKind.DROPPED, world.root)]
        await eventually(world, lambda: len(seen) == 2, "watches are dropped")
        assert sorted(seen) == sorted(dropped)
        stat = await two.exists(path)
        assert stat is not None
        assert stat.owner == session_id
        await one.set(path, b"again", version=0)

    play(story)


def test_a_session_that_is_not_heard_of_expires(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one", SHORT_SESSION_MS), await world.open("two")
        assert one.timeout_ms == SHORT_SESSION_MS
        path = f"{world.root}/e"
        await one.create(path, kind=NodeKind.EPHEMERAL)
        states: list[SessionState] = []
        seen: list[WatchEvent] = []
        one.add_listener(states.append)
        await two.exists(path, watch=seen.append)
        world.cut("one")
        await eventually(world, lambda: seen, "its node is deleted")
        assert one.state is SessionState.SUSPENDED
        world.mend("one")
        with pytest.raises(errors.SessionLost):
            await one.connected()
        await eventually(world, lambda: states[-1:] == [SessionState.LOST], "it is told")
        assert states == [SessionState.SUSPENDED, SessionState.LOST]
        with pytest.raises(errors.SessionLost):
            await one.create(path)
        assert await two.exists(path) is None

    play(story)


def test_a_quiet_session_is_kept_alive(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one", SHORT_SESSION_MS), await world.open("two")
        path = f"{world.root}/e"
        created = await one.create(path, kind=NodeKind.EPHEMERAL)
        await asyncio.sleep(2.2 * SHORT_SESSION_MS / 1000)
        assert await two.exists(path) == created.stat
        assert one.state is SessionState.CONNECTED

    play(story)


def test_a_lost_answer_leaves_doubt_and_the_owner_is_the_proof(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/controller"
        seen: list[WatchEvent] = []
        await two.exists(path, watch=seen.append)
        world.deafen("one")
        creating = asyncio.ensure_future(one.create(path, b"one", kind=NodeKind.EPHEMERAL))
        await eventually(world, lambda: seen, "it is created")
        world.cut("one")
        with pytest.raises(errors.ConnectionLost) as lost:
            await creating
        assert lost.value.is_in_doubt
        world.mend("one")
        await one.connected()
        stat = await one.exists(path)
        assert stat is not None
        assert stat.owner == one.session_id
        with pytest.raises(errors.NodeExists):
            await one.create(path, kind=NodeKind.EPHEMERAL)

    play(story)


def test_a_write_whose_answer_was_lost_is_proved_and_not_made_twice(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/p"

        async def with_lost_answer(write: Awaitable[object], watched: str) -> object:
            seen: list[WatchEvent] = []
            await two.exists(watched, watch=seen.append)
            world.deafen("one")
            writing = asyncio.ensure_future(write)
            await eventually(world, lambda: seen, "it is carried out")
            world.cut("one")
            await eventually(world, lambda: one.state is SessionState.SUSPENDED, "suspended")
            world.mend("one")
            return await writing

        mine = create_with_proof(one, path, b"one", kind=NodeKind.EPHEMERAL)
        created = await with_lost_answer(mine, path)
        assert created == (path, await two.exists(path))
        stat = await with_lost_answer(set_with_proof(one, path, b"more", version=0), path)
        assert stat == await two.exists(path)
        assert isinstance(stat, NodeStat)
        assert stat.version == 1
        await with_lost_answer(delete_with_proof(one, path, version=1), path)
        assert await two.exists(path) is None

    play(story)


def test_a_proof_does_not_take_somebody_elses_write_for_ones_own(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/p"
        await two.create(path, b"two", kind=NodeKind.EPHEMERAL)
        world.cut("one")
        await eventually(world, lambda: one.state is SessionState.SUSPENDED, "suspended")
        creating = asyncio.ensure_future(
            create_with_proof(one, path, b"two", kind=NodeKind.EPHEMERAL)
        )
        setting = asyncio.ensure_future(set_with_proof(one, path, b"one", version=5))
        await world.pause()
        world.mend("one")
        with pytest.raises(errors.NodeExists):
            await creating
        with pytest.raises(errors.BadVersion):
            await setting
        with pytest.raises(errors.NoNode):
            await delete_with_proof(one, f"{world.root}/none", version=ANY_VERSION)

    play(story)


def test_everyone_reads_what_was_written_before(play: Play) -> None:
    async def story(world: World) -> None:
        one, two = await world.open("one"), await world.open("two")
        path = f"{world.root}/r"
        await one.create(path, b"0")
        for number in range(20):
            await one.set(path, str(number).encode(), version=number)
            assert (await one.get(path)).data == str(number).encode()
            await two.sync(path)
            assert (await two.get(path)).stat.version >= number + 1

        async def is_seen() -> bool:
            return (await two.get(path)).data == b"19"

        await eventually_true(world, is_seen, "the last value is seen")

    play(story)


def test_requests_of_a_session_are_carried_out_in_order(play: Play) -> None:
    async def story(world: World) -> None:
        one, path = await world.open("one"), f"{world.root}/o"
        await one.create(path)
        writes = [one.set(path, b"%d" % number, version=number) for number in range(100)]
        stats = await asyncio.gather(*writes)
        assert [stat.version for stat in stats] == list(range(1, 101))
        zxids = [stat.mzxid for stat in stats]
        assert zxids == sorted(zxids)

    play(story)
