"""I-37: the budget for what requests take in memory, as a machine."""

from random import Random

from millstream.broker.requests.account import Account
from millstream.broker.requests.request_memory import (
    ITEM_BYTES,
    SMALL_BYTES_MAX,
    RequestMemory,
    cost_of,
    cost_of_items,
    next_items_max,
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


def take(memory: RequestMemory, account: Account, size: int) -> None:
    memory.set_request(account, 0, account.charges.get(0, 0) + size)


def try_take(memory: RequestMemory, account: Account, size: int) -> bool:
    may_have = memory.may_have(account, size)
    if may_have:
        take(memory, account, size)
    return may_have


def granted(memory: RequestMemory) -> list[Account]:
    """Those that get memory now; each is charged."""
    accounts = []
    while (one := memory.take_granted()) is not None:
        take(memory, one.account, one.size_bytes)
        accounts.append(one.account)
    return accounts


def test_clients_have_three_quarters_small_requests_seven_eighths_and_brokers_all_of_it() -> None:
    memory, one = RequestMemory(BUDGET), Account("a")
    assert try_take(memory, one, CLIENTS)
    assert not try_take(memory, one, SMALL_BYTES_MAX + 1)
    for _ in range(8):
        assert try_take(memory, one, SMALL_BYTES_MAX)
    assert not try_take(memory, one, 1)
    assert try_take(memory, of_broker(), BUDGET - memory.used_bytes)
    assert memory.excess_bytes == 0


def test_a_large_request_is_not_overtaken_by_other_large_ones() -> None:
    memory = RequestMemory(BUDGET)
    first, second, third = Account("a"), Account("a"), Account("b")
    assert try_take(memory, first, 40 * MIB)
    memory.wait(second, 20 * MIB, 0.0, nothing)
    assert not try_take(memory, third, 2 * MIB)
    assert try_take(memory, third, SMALL_BYTES_MAX)
    assert granted(memory) == []
    take(memory, first, -40 * MIB)
    assert granted(memory) == [second]


def test_each_address_has_its_turn() -> None:
    """A client with a thousand connections does not keep another from its first."""
    memory, holder = RequestMemory(BUDGET), Account("x")
    take(memory, holder, CLIENTS)
    many = [Account("a") for _ in range(3)]
    other = Account("b")
    for account in (*many, other):
        memory.wait(account, 2 * MIB, 0.0, nothing)
    take(memory, holder, -CLIENTS)
    assert granted(memory) == [many[0], other, many[1], many[2]]


def test_a_broker_waits_behind_no_client() -> None:
    memory, holder, broker = RequestMemory(BUDGET), Account("x"), of_broker()
    take(memory, holder, BUDGET)
    memory.wait(Account("a"), 2 * MIB, 0.0, nothing)
    memory.wait(broker, 30 * MIB, 0.0, nothing)
    take(memory, holder, -30 * MIB)
    assert granted(memory) == [broker]


def test_who_waits_too_long_is_overdue() -> None:
    memory, early, late = RequestMemory(BUDGET), Account("a"), Account("a")
    memory.wait(early, MIB, 1.0, nothing)
    memory.wait(late, MIB, 2.0, nothing)
    memory.wait(of_broker(), MIB, 1.0, nothing)
    assert memory.overdue(REQUEST_MEMORY_WAIT_S + 1.5) == [early]


def test_who_had_a_turn_and_takes_more_waits_before_those_that_had_none() -> None:
    memory, holder, first, second = RequestMemory(BUDGET), Account("x"), Account("a"), Account("b")
    take(memory, holder, CLIENTS)
    memory.wait(first, 2 * MIB, 0.0, nothing)
    memory.wait(second, 2 * MIB, 0.0, nothing, had_turn=True)
    memory.release(holder, 0)
    assert granted(memory) == [second, first]


def test_items_are_charged_as_they_are_found_not_as_there_could_be() -> None:
    """A produce request of a megabyte for 1,001 partitions is not one of 250,000 items."""
    allowed = next_items_max(MIB, 1_000, CLIENTS)
    assert 1_001 < allowed < 10_000
    assert next_items_max(MIB, allowed, CLIENTS) > allowed
    assert next_items_max(MIB, 64_000, CLIENTS) == 0  # there is no memory for more
    assert next_items_max(100 * MIB, REQUEST_ITEMS_MAX, 2**40) == 0
    assert next_items_max(20_000, 1_000, CLIENTS) == REQUEST_ITEMS_MAX  # its bytes say it all


def test_a_request_gets_no_more_items_than_may_be_charged() -> None:
    memory = RequestMemory(BUDGET)
    size, items = 10 * MIB, 1_000
    bytes_max = memory.bytes_max(Account("a"), size)
    while more := next_items_max(size, items, bytes_max):
        items = more
        assert cost_of_items(size, items) <= bytes_max
    assert items == bytes_max // ITEM_BYTES


def test_what_lasts_counts_and_never_takes_all_of_a_small_budget() -> None:
    memory = RequestMemory(BUDGET)
    memory.include(lasting=lambda: 5 * MIB, decompressed=lambda: 3 * MIB)
    assert memory.used_bytes == 8 * MIB
    memory.include(lasting=lambda: 500 * MIB)
    assert memory.used_bytes == BUDGET // 4 + 3 * MIB


def test_the_most_that_a_request_of_the_default_size_takes_fits_the_default_budget() -> None:
    memory, one = RequestMemory(REQUEST_MEMORY_BYTES), Account("a")
    size = 100 * MIB
    for api_key in (ApiKey.METADATA, ApiKey.FETCH):
        most = max(cost_of(api_key, 26 * REQUEST_ITEMS_MAX), cost_of_items(size))
        assert most <= memory.bytes_max(one, size)
        assert memory.has_room(one, size + most)


def test_everything_is_returned_whatever_the_order() -> None:
    random = Random(7)
    for _ in range(30):
        memory = RequestMemory(BUDGET)
        accounts = [Account(str(index % 3)) for index in range(8)]
        for _ in range(60):
            one, size = random.choice(accounts), random.randrange(20 * MIB)
            random.choice((memory.set_input, memory.set_answers))(one, size)
            if not try_take(memory, one, size):
                memory.wait(one, size, 0.0, nothing)
            granted(memory)
            if random.random() < 0.3:
                memory.close(one)
        for one in accounts:
            memory.close(one)
        assert memory.used_bytes == memory.waiting_count == 0
