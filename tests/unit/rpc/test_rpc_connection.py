"""The connection over a simulated network: turns, deadlines, cancelling, ends."""

import asyncio
from struct import pack
from typing import Any

import pytest

from kits.rpc.rpc_kit import QUICK, Held, Pair, now_s, run_pending
from kits.rpc.rpc_server import (
    Asked,
    Server,
    Session,
    answer_at_once,
    echo,
    frame_of,
    name_of,
    question,
)
from millstream.rpc.errors import (
    ConnectionLost,
    RequestTimedOut,
    RpcError,
    UnsupportedApiVersion,
)
from millstream.rpc.settings import RpcSettings
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitives import MalformedFrame

# -- answers ---------------------------------------------------------------------------------------


def test_many_requests_at_once_each_get_their_answer() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        names = [f"topic-{n}" for n in range(50)]
        responses = await asyncio.gather(*(connection.send(question(name)) for name in names))
        assert [name_of(one) for one in responses] == names
        assert [one.correlation_id for one in pair.server.session.asked] == list(range(1, 51))
        assert {one.client_id for one in pair.server.session.asked} == {"me"}

    pair.play(scenario)


def test_never_more_in_flight_than_allowed_and_first_come_first_served() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        names = [f"{n}" for n in range(11)]
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(connection.send(question(name))) for name in names]
            while not all(one.done() for one in sent):
                await run_pending()
                assert len(held.waiting) == min(4, len([one for one in sent if not one.done()]))
                assert connection.in_flight == len(held.waiting)
                held.release(1)
        assert [name_of(one.result()) for one in sent] == names
        order = [
            MetadataRequest.decode(one.body, one.version).topics
            for one in pair.server.session.asked
        ]
        assert [topics[0].name for topics in order if topics] == names

    pair.play(scenario)


def test_versions_are_the_highest_in_common_and_may_be_narrowed() -> None:
    pair = Pair(Server(ranges={ApiKey.API_VERSIONS: range(5), ApiKey.METADATA: range(2, 10)}))

    async def scenario() -> None:
        connection = await pair.connect()
        assert connection.version_of(MetadataRequest) == 9
        await connection.send(question("a"))
        await connection.send(question("a"), versions=range(3, 6))
        assert [one.version for one in pair.server.session.asked] == [9, 5]
        with pytest.raises(UnsupportedApiVersion):
            await connection.send(question("a"), versions=range(10, 13))
        with pytest.raises(UnsupportedApiVersion):
            connection.send_nowait_no_response(ProduceRequest())
        assert connection.is_open

    pair.play(scenario)


@pytest.mark.parametrize("known", [range(1), range(3), range(4)], ids=str)
def test_an_older_broker_is_asked_for_its_versions_in_its_own_way(known: range) -> None:
    pair = Pair(Server(ranges={ApiKey.API_VERSIONS: known, ApiKey.METADATA: range(5)}))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"

    pair.play(scenario)


def test_a_broker_that_says_nothing_about_its_versions_gets_version_0() -> None:
    """Before KIP-511: only the error."""
    versions = []

    def old(session: Session, asked: Asked) -> None:
        if asked.key is not ApiKey.API_VERSIONS:
            answer_at_once(session, asked)
            return
        versions.append(asked.version)
        body = pack(">hi", 35, 0) if asked.version else pack(">hihhh", 0, 1, 3, 0, 1)
        session.transport.write(frame_of(asked, body, version=0))

    pair = Pair(Server(old, answers_versions=False))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"
        assert versions[-1] == 0
        assert len(versions) == 2

    pair.play(scenario)


def test_an_answer_that_cannot_be_read_is_an_error_of_its_request_alone() -> None:
    bad = [True, False]

    def server(session: Session, asked: Asked) -> None:
        session.transport.write(frame_of(asked, b"\xff" * 3) if bad.pop(0) else echo(asked))

    pair = Pair(Server(server))

    async def scenario() -> None:
        connection = await pair.connect()
        with pytest.raises(MalformedFrame):
            await connection.send(question("a"))
        assert name_of(await connection.send(question("b"))) == "b"

    pair.play(scenario)


def test_a_request_its_version_cannot_carry_leaves_the_connection_alone() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        with pytest.raises(ValueError, match="MetadataRequest"):
            await connection.send(MetadataRequest(topics=None), versions=range(1))
        assert name_of(await connection.send(question("b"))) == "b"
        assert connection.in_flight == 0

    pair.play(scenario)


# -- time ------------------------------------------------------------------------------------------


def test_a_request_without_an_answer_times_out_and_takes_the_connection_with_it() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        start_s = now_s()
        patient = asyncio.create_task(connection.send(question("patient"), timeout_s=60))
        with pytest.raises(RequestTimedOut) as timed_out:
            await connection.send(question("x"), timeout_s=2)
        assert now_s() - start_s == pytest.approx(2, abs=0.01)
        assert timed_out.value.may_have_been_processed
        with pytest.raises(ConnectionLost, match="timed out") as lost:
            await patient
        assert lost.value.may_have_been_processed
        assert not connection.is_open
        with pytest.raises(ConnectionLost) as after:
            await connection.send(question("later"))
        assert not after.value.may_have_been_processed
        held.release()  # too late, to nobody
        await run_pending()
        assert pair.server.session.is_lost

    pair.play(scenario)


def test_a_request_that_never_got_its_turn_times_out_alone() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        first = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(4)]
        await run_pending()
        with pytest.raises(RequestTimedOut) as failure:
            await connection.send(question("waits"), timeout_s=1)
        assert not failure.value.may_have_been_processed
        assert connection.is_open
        held.release()
        assert [name_of(await one) for one in first] == ["0", "1", "2", "3"]
        pair.server.on_request = answer_at_once
        assert name_of(await connection.send(question("next"))) == "next"
        assert len(pair.server.session.asked) == 5

    pair.play(scenario)


def test_the_shorter_deadline_of_a_later_request_is_kept() -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        start_s = now_s()
        outcomes = await asyncio.gather(
            connection.send(question("a"), timeout_s=100),
            connection.send(question("b"), timeout_s=1),
            return_exceptions=True,
        )
        assert now_s() - start_s == pytest.approx(1, abs=0.01)
        assert [type(one) for one in outcomes] == [ConnectionLost, RequestTimedOut]

    pair.play(scenario)


def test_an_idle_connection_closes_itself_and_a_busy_one_does_not() -> None:
    held = Held()
    pair = Pair(Server(held), RpcSettings(idle_s=100, request_timeout_s=1000))

    async def scenario() -> None:
        connection = await pair.connect()
        waiting = asyncio.create_task(connection.send(question("long poll")))
        await asyncio.sleep(500)
        assert connection.is_open
        held.release()
        assert name_of(await waiting) == "long poll"
        pair.server.on_request = answer_at_once
        for _ in range(5):
            await asyncio.sleep(60)
            await connection.send(question("x"))
        await asyncio.sleep(101)
        assert connection.closed_reason == "idle"
        await connection.wait_closed()
        await run_pending()
        assert pair.server.session.is_lost

    pair.play(scenario)


# -- cancelling ------------------------------------------------------------------------------------


def test_a_cancelled_request_does_not_shift_the_answers_of_others() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(8)]
        await run_pending()
        for number in (1, 2, 5):  # in flight, in flight, waiting for its turn
            sent[number].cancel()
        while any(not one.done() for one in sent):
            held.release()
            await run_pending()
        assert [one.cancelled() for one in sent] == [n in (1, 2, 5) for n in range(8)]
        for number in (0, 3, 4, 6, 7):
            assert name_of(sent[number].result()) == f"{number}"
        assert connection.in_flight == 0
        assert len(pair.server.session.asked) == 7

    pair.play(scenario)


def test_a_turn_that_was_given_to_a_cancelled_request_goes_to_the_next() -> None:
    held = Held()
    pair = Pair(Server(held), RpcSettings(in_flight_max=1))

    async def scenario() -> None:
        connection = await pair.connect()
        loop = asyncio.get_running_loop()
        second: asyncio.Task[Any]

        def first(_: memoryview | RpcError) -> None:
            loop.call_soon(second.cancel)  # after its turn was given, before it runs

        connection.send_raw(ApiKey.METADATA, 1, [question("first").encode(1)], first)
        second = asyncio.create_task(connection.send(question("second")))
        third = asyncio.create_task(connection.send(question("third")))
        await run_pending()
        held.release()
        await run_pending()
        assert second.cancelled()
        held.release()
        assert name_of(await third) == "third"

    pair.play(scenario)


def test_a_cancelled_request_that_is_never_answered_still_ends_the_connection_in_time() -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = asyncio.create_task(connection.send(question("x")))
        await run_pending()
        sent.cancel()
        await asyncio.sleep(QUICK.request_timeout_s)
        assert connection.closed_reason == "a request timed out"

    pair.play(scenario)


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "abort", "kill"])
def test_when_the_connection_ends_everyone_is_told_what_may_have_happened(end: str) -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(6)]
        await run_pending()
        match end:
            case "close":
                pair.server.session.transport.close()
            case "abort":
                pair.server.session.transport.abort()
            case _:
                pair.world.network.kill_host("server")
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, ConnectionLost) for one in outcomes)
        may_have_been = [
            one.may_have_been_processed for one in outcomes if isinstance(one, RpcError)
        ]
        assert may_have_been == [True] * 4 + [False] * 2
        await connection.wait_closed()

    pair.play(scenario)


def test_closing_sends_what_was_written_first() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        connection.send_nowait_no_response(ProduceRequest(acks=0))
        connection.close()
        with pytest.raises(ConnectionLost, match="closed by us"):
            connection.send_nowait_no_response(ProduceRequest(acks=0))
        await connection.wait_closed()
        await run_pending()
        assert [one.key for one in pair.server.session.asked] == [ApiKey.PRODUCE]

    pair.server.on_request = lambda session, asked: None
    pair.play(scenario)


def test_requests_without_an_answer_keep_the_order_of_the_others() -> None:
    def server(session: Session, asked: Asked) -> None:
        if asked.key is ApiKey.METADATA:
            answer_at_once(session, asked)

    pair = Pair(Server(server))

    async def scenario() -> None:
        connection = await pair.connect()
        first = asyncio.create_task(connection.send(question("a")))
        await asyncio.sleep(0)
        connection.send_nowait_no_response(ProduceRequest(acks=0))
        assert name_of(await connection.send(question("b"))) == "b"
        assert name_of(await first) == "a"
        keys = [one.key for one in pair.server.session.asked]
        assert keys == [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.METADATA]

    pair.play(scenario)
