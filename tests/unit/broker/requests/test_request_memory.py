"""I-37: the budget for what requests take in memory, as a machine."""

from random import Random

from millstream.broker.requests.request_memory import (
    SMALL_BYTES_MAX,
    Account,
    RequestMemory,
    cost_of,
    cost_of_items,
)
from millstream.model.limits import (
    MIB,
    REQUEST_ITEMS_MAX,
    REQUEST_MEMORY_BYTES,
    REQUEST_MEMORY_WAIT_S,
)
from millstream.wire.api_keys import ApiKey

BUDGET = 64 * MIB
CLIENTS = 48 * MIB


def nothing() -> None: ...


def of_broker() -> Account:
    account = Account("b")
    account.is_broker = True
    return account


def granted(memory: RequestMemory) -> list[Account]:
    """Those that get memory now; each is charged."""
    accounts = []
    while (one := memory.take_granted()) is not None:
        memory.add_request(one.account, one.size_bytes)
        accounts.append(one.account)
    return accounts


def test_clients_have_three_quarters_small_requests_seven_eighths_and_brokers_all_of_it() -> None:
    memory, one = RequestMemory(BUDGET), Account("a")
    assert memory.try_take(one, CLIENTS)
    assert not memory.try_take(one, SMALL_BYTES_MAX + 1)
    for _ in range(8):
        assert memory.try_take(one, SMALL_BYTES_MAX)
    assert not memory.try_take(one, 1)
    assert memory.try_take(of_broker(), BUDGET - memory.used_bytes)
    assert memory.excess_bytes == 0


def test_a_large_request_is_not_overtaken_by_other_large_ones() -> None:
    memory = RequestMemory(BUDGET)
    first, second, third = Account("a"), Account("a"), Account("b")
    assert memory.try_take(first, 40 * MIB)
    memory.wait(second, 20 * MIB, 0.0, nothing)
    assert not memory.try_take(third, 2 * MIB)
    assert memory.try_take(third, SMALL_BYTES_MAX)
    assert granted(memory) == []
    memory.add_request(first, -40 * MIB)
    assert granted(memory) == [second]


def test_each_address_has_its_turn() -> None:
    """A client with a thousand connections does not keep another from its first."""
    memory, holder = RequestMemory(BUDGET), Account("x")
    memory.add_request(holder, CLIENTS)
    many = [Account("a") for _ in range(3)]
    other = Account("b")
    for account in (*many, other):
        memory.wait(account, 2 * MIB, 0.0, nothing)
    memory.add_request(holder, -CLIENTS)
    assert granted(memory) == [many[0], other, many[1], many[2]]


def test_a_broker_waits_behind_no_client() -> None:
    memory, holder, broker = RequestMemory(BUDGET), Account("x"), of_broker()
    memory.add_request(holder, BUDGET)
    memory.wait(Account("a"), 2 * MIB, 0.0, nothing)
    memory.wait(broker, 30 * MIB, 0.0, nothing)
    memory.add_request(holder, -30 * MIB)
    assert granted(memory) == [broker]


def test_who_waits_too_long_is_overdue() -> None:
    memory, early, late = RequestMemory(BUDGET), Account("a"), Account("a")
    memory.wait(early, MIB, 1.0, nothing)
    memory.wait(late, MIB, 2.0, nothing)
    assert memory.overdue(REQUEST_MEMORY_WAIT_S + 1.5) == [early]


def test_what_lasts_counts_and_never_takes_all_of_a_small_budget() -> None:
    memory = RequestMemory(BUDGET)
    memory.include(lasting=lambda: 5 * MIB, decompressed=lambda: 3 * MIB)
    assert memory.used_bytes == 8 * MIB
    memory.include(lasting=lambda: 500 * MIB)
    assert memory.used_bytes == BUDGET // 4 + 3 * MIB


def test_the_most_that_a_request_of_the_default_size_takes_fits_the_default_budget() -> None:
    memory, one = RequestMemory(REQUEST_MEMORY_BYTES), Account("a")
    size = 100 * MIB
    assert memory.has_room(one, cost_of(ApiKey.METADATA, size) + cost_of_items(size))
    assert memory.has_room(one, cost_of(ApiKey.FETCH, 26 * REQUEST_ITEMS_MAX))


def test_everything_is_returned_whatever_the_order() -> None:
    random = Random(7)
    for _ in range(30):
        memory = RequestMemory(BUDGET)
        accounts = [Account(str(index % 3)) for index in range(8)]
        for _ in range(60):
            one, size = random.choice(accounts), random.randrange(20 * MIB)
            random.choice((memory.set_input, memory.set_answers))(one, size)
            if one.waiter is None and not memory.try_take(one, size):
                memory.wait(one, size, 0.0, nothing)
            granted(memory)
            if random.random() < 0.3:
                memory.close(one, is_served=False)
        for one in accounts:
            memory.close(one, is_served=False)
        assert memory.used_bytes == memory.waiting_count == 0
