"""Settings of the client: Kafka's names and defaults, typed, refused in words, good as a key."""

import logging

import pytest

from millstream.client import settings as settings_module
from millstream.client.errors import ConfigInvalid
from millstream.client.setting_keys import CLIENT_KEYS, field_name
from millstream.client.settings import ClientSettings, HostPort, parse_addresses

SERVERS = {"bootstrap.servers": "one:9092"}


def made(**configs: object) -> ClientSettings:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return ClientSettings.from_configs(SERVERS | named)


def test_every_key_has_a_field_and_every_field_a_key() -> None:
    fields = set(ClientSettings.__dataclass_fields__) - {"others"}
    assert fields == {field_name(key) for key in CLIENT_KEYS}


def test_the_defaults_are_kafkas() -> None:
    got = made()
    assert got.bootstrap_servers == (HostPort("one", 9092),)
    assert (got.default_api_timeout_ms, got.request_timeout_ms) == (60_000, 30_000)
    assert (got.fetch_max_bytes, got.max_partition_fetch_bytes) == (52_428_800, 1_048_576)
    assert (got.acks, got.enable_idempotence, got.linger_ms) == (-1, True, 5)
    assert (got.delivery_timeout_ms, got.isolation_level) == (120_000, "read_uncommitted")
    assert not got.is_read_committed
    assert (got.reconnect_backoff.initial_s, got.reconnect_backoff.max_s) == (0.05, 1.0)
    assert (got.retry_backoff.initial_s, got.retry_backoff.max_s) == (0.1, 1.0)
    assert (got.rpc.idle_s, got.rpc.connect_timeout_s) == (540.0, 10.0)


def test_equal_settings_are_one_key() -> None:
    one = made(request_timeout_ms=" 5000 ", check_crcs=False)
    other = made(check_crcs="FALSE", request_timeout_ms=5000)
    assert one == other
    assert hash(one) == hash(other)
    assert {one: "client"}[other] == "client"
    assert one != made(request_timeout_ms=5001)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b.example.org:65535 ", [("a", 1), ("b.example.org", 65535)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("PLAINTEXT://a:1,a:1", [("a", 1)]),
        ("a_b-c:1", [("a_b-c", 1)]),
    ],
)
def test_addresses(text: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_addresses(text) == tuple(HostPort(*one) for one in addresses)


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "::1:9092", "a:1,,b:2"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"bootstrap\.servers"):
        made(bootstrap_servers=text)


@pytest.mark.parametrize("configs", [{}, {"bootstrap.servers": " "}])
def test_without_addresses_it_says_what_is_missing(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigInvalid, match="set it to host:port of a broker"):
        ClientSettings.from_configs(configs)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request.timeout.ms", "30s"),
        ("request.timeout.ms", "1.5"),
        ("request.timeout.ms", "99999999999"),
        ("fetch.min.bytes", "-1"),
        ("check.crcs", "yes"),
        ("acks", "2"),
        ("isolation.level", "serializable"),
        ("compression.type", "brotli"),
        ("compression.gzip.level", "0"),
        ("compression.zstd.level", "23"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(name: str, value: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        ClientSettings.from_configs(SERVERS | {name: value})
    for part in (name, value, "must be"):
        assert part in str(caught.value)


def test_security_is_refused_until_it_is_there() -> None:
    for protocol in ("SSL", "SASL_PLAINTEXT", "sasl_ssl"):
        with pytest.raises(ConfigInvalid, match="not supported yet"):
            made(security_protocol=protocol)
    made(security_protocol="plaintext")


def test_idempotence_gives_way_unless_it_was_asked_for() -> None:
    assert not made(acks="1").enable_idempotence
    assert not made(max_in_flight_requests_per_connection=6).enable_idempotence
    assert made(acks="-1", enable_idempotence=True).enable_idempotence
    with pytest.raises(ConfigInvalid, match="requires acks=all"):
        made(acks="1", enable_idempotence=True)
    with pytest.raises(ConfigInvalid, match="at most 5"):
        made(max_in_flight_requests_per_connection=6, enable_idempotence=True)


def test_delivery_takes_as_long_as_a_request_may() -> None:
    assert made(request_timeout_ms=500_000).delivery_timeout_ms == 500_005
    with pytest.raises(ConfigInvalid, match=r"\(30005\)"):
        made(delivery_timeout_ms=30_000)


def test_unknown_keys_are_kept_and_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_warned_keys", set())
    with caplog.at_level(logging.WARNING, "millstream"):
        got = made(sasl_password="hunter2", group_id="g")
        made(sasl_password="other")
    assert got.others == (("group.id", "g"), ("sasl.password", "hunter2"))
    assert sorted(one.message for one in caplog.records) == [
        f"unknown client setting {name!r} is ignored" for name in ("group.id", "sasl.password")
    ]
    assert "hunter2" not in repr(got) + caplog.text


def test_a_mistyped_key_comes_with_the_one_that_was_meant(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_warned_keys", set())
    with caplog.at_level(logging.WARNING, "millstream"):
        made(request_timout_ms="5")
    assert [one.message for one in caplog.records] == [
        "unknown client setting 'request.timout.ms' is ignored; did you mean request.timeout.ms?"
    ]


def test_a_connection_may_be_kept_for_ever() -> None:
    assert made(connections_max_idle_ms=-1).rpc.idle_s > 1e8


def test_a_first_pause_is_never_above_the_longest() -> None:
    backoff = made(retry_backoff_ms=5000, retry_backoff_max_ms=200).retry_backoff
    assert (backoff.initial_s, backoff.max_s) == (0.2, 0.2)
