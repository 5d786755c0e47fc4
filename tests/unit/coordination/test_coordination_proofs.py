"""What counts as proof that a write without an answer was carried out."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from millstream.coordination import errors, proofs
from millstream.coordination.keeper.state import Node
from millstream.coordination.port import Created, NodeData, NodeKind, Session
from millstream.model.ids import SessionId

OURS, THEIRS = SessionId(7), SessionId(8)
LOST = errors.ConnectionLost()
NOT_SENT = errors.ConnectionLost(is_in_doubt=False)
PATH = "/p"


def node(data: bytes, *, version: int = 0, owner: SessionId = THEIRS) -> NodeData:
    return NodeData(data, Node(data, version=version, owner=owner).stat())


class Scripted:
    """Says what it was told to say, one answer after the other."""

    session_id = OURS

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*_arguments: object, **_options: object) -> object:
            if name in ("connected", "sync"):
                return None
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def session(*answers: object) -> Session:
    return cast("Session", Scripted(*answers))


EXISTS, CHANGED, ABSENT = errors.NodeExists(PATH), errors.BadVersion(PATH), errors.NoNode(PATH)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((LOST, EXISTS, node(b"x", owner=OURS)), NodeKind.EPHEMERAL),
        ((LOST, NOT_SENT, EXISTS, LOST, node(b"x", owner=OURS)), NodeKind.EPHEMERAL),
        ((LOST, EXISTS, node(b"x")), NodeKind.PERSISTENT),
    ],
)
def test_a_node_that_is_ours(answers: tuple[object, ...], kind: NodeKind) -> None:
    made = asyncio.run(proofs.create_with_proof(session(*answers), PATH, b"x", kind=kind))
    last = answers[-1]
    assert isinstance(last, NodeData)
    assert made == Created(PATH, last.stat)


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ((EXISTS,), NodeKind.EPHEMERAL),
        ((NOT_SENT, EXISTS), NodeKind.PERSISTENT),
        ((LOST, EXISTS, node(b"x", owner=THEIRS)), NodeKind.EPHEMERAL),
        ((LOST, EXISTS, node(b"y")), NodeKind.PERSISTENT),
        ((LOST, EXISTS, node(b"x", version=1)), NodeKind.PERSISTENT),
        ((LOST, EXISTS, ABSENT), NodeKind.PERSISTENT),
    ],
)
def test_a_node_that_is_not(answers: tuple[object, ...], kind: NodeKind) -> None:
    with pytest.raises(errors.NodeExists):
        asyncio.run(proofs.create_with_proof(session(*answers), PATH, b"x", kind=kind))


def test_a_change_that_is_ours() -> None:
    after = node(b"x", version=4)
    answers = (LOST, CHANGED, after)
    stat = asyncio.run(proofs.set_with_proof(session(*answers), PATH, b"x", version=3))
    assert stat == after.stat


@pytest.mark.parametrize(
    "answers",
    [
        (CHANGED,),
        (NOT_SENT, CHANGED),
        (LOST, CHANGED, node(b"x", version=5)),
        (LOST, CHANGED, node(b"y", version=4)),
        (LOST, CHANGED, ABSENT),
    ],
)
def test_a_change_that_is_not(answers: tuple[object, ...]) -> None:
    with pytest.raises(errors.BadVersion):
        asyncio.run(proofs.set_with_proof(session(*answers), PATH, b"x", version=3))


def test_a_node_that_is_gone_after_a_lost_answer_was_deleted() -> None:
    asyncio.run(proofs.delete_with_proof(session(LOST, ABSENT), PATH, version=1))
    with pytest.raises(errors.NoNode):
        asyncio.run(proofs.delete_with_proof(session(NOT_SENT, ABSENT), PATH, version=1))


def test_a_lost_session_ends_every_attempt() -> None:
    lost = errors.SessionLost("gone")
    with pytest.raises(errors.SessionLost):
        asyncio.run(proofs.create_with_proof(session(LOST, lost), PATH))
