"""`millstream topics`: create, list, describe and delete topics of Millstream or Apache Kafka.

Output is lines of tab-separated fields, for people and for `cut`; errors are one line each on
stderr. Exit code 0 when everything was done, 1 when something failed, 2 for wrong options.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from millstream.cli.client_options import (
    INT16_MAX,
    INT32_MAX,
    LOCAL,
    TIMEOUT_S,
    Names,
    Servers,
    SomeNames,
    Timeout,
    client_settings,
    connected,
    number_option,
)
from millstream.cli.failure import EXIT_PROBLEMS, complain, printing, refuse, require_stdout

if TYPE_CHECKING:
    from millstream.client.blocking import BlockingClient
    from millstream.client.errors import ClientError
    from millstream.client.metadata import TopicInfo

R = TypeVar("R")

app = typer.Typer(help="Create, list, describe and delete topics of a running cluster.")


@app.command("create")
def create(
    names: Names,
    partitions: Annotated[
        int,
        number_option(
            "--partitions",
            low=-1,
            high=INT32_MAX,
            help_text="Number of partitions; -1 is the broker's default.",
        ),
    ] = -1,
    replication_factor: Annotated[
        int,
        number_option(
            "--replication-factor",
            low=-1,
            high=INT16_MAX,
            help_text="Replicas of each partition; -1 is the broker's default.",
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="KEY=VALUE", help="Setting of the topic; may be repeated."
        ),
    ] = None,
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Create topics; prints a line for each."""
    configs = _configs(config or [])
    with _client(bootstrap_server, timeout) as client:
        from millstream.client.admin import NewTopic

        wanted = [
            NewTopic(
                name=name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
            )
            for name in dict.fromkeys(names)
        ]
        _print_outcomes(
            client.create_topics(wanted),
            lambda name, made: _line(
                "created",
                name,
                f"id={made.topic_id}",
                f"partitions={made.partitions}",
                f"replicas={made.replication_factor}",
            ),
        )


@app.command("list")
def list_all(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """List the names of all topics, one per line."""
    with _client(bootstrap_server, timeout) as client:
        names = client.list_topics(includes_internal=internal)
        with printing():
            for name in names:
                typer.echo(name)


@app.command("describe")
def describe(
    names: SomeNames = None,
    bootstrap_server: Servers = LOCAL,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Describe topics: a line for the topic, each of its own settings and each partition."""
    with _client(bootstrap_server, timeout) as client:
        wanted = list(dict.fromkeys(names)) if names else list(client.list_topics())
        found = client.describe_topics(wanted)
        settings = _own_settings(client, found)
        _print_outcomes(found, lambda name, topic: _description(topic, settings.get(name, {})))


@app.command("delete")
def delete(names: Names, bootstrap_server: Servers = LOCAL, timeout: Timeout = TIMEOUT_S) -> None:
    """Delete topics with all their records; prints a line for each."""
    with _client(bootstrap_server, timeout) as client:
        outcomes = client.delete_topics(dict.fromkeys(names))
        _print_outcomes(outcomes, lambda name, _: _line("deleted", name))


def _configs(texts: list[str]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            refuse(f"--config {text}: must be KEY=VALUE, for example retention.ms=60000")
        configs[name.strip()] = value
    return configs


def _client(servers: str, timeout_s: float) -> "AbstractContextManager[BlockingClient]":
    require_stdout()
    return connected(client_settings(servers, timeout_s))


def _print_outcomes(
    outcomes: "Mapping[str, R | ClientError]", show: Callable[[str, R], str]
) -> None:
    """Print results to stdout and errors to stderr; exits with EXIT_PROBLEMS if there are any."""
    from millstream.client.errors import ClientError

    failed = False
    with printing():
        for name, outcome in outcomes.items():
            if isinstance(outcome, ClientError):
                complain(str(outcome))
                failed = True
            else:
                typer.echo(show(name, outcome))
    if failed:
        raise typer.Exit(EXIT_PROBLEMS)


def _line(*fields: str) -> str:
    return "\t".join(fields)


def _description(topic: "TopicInfo", settings: Mapping[str, str]) -> str:
    replicas = max((len(one.replicas) for one in topic.partitions), default=0)
    head = _line(
        "topic",
        topic.name,
        f"id={topic.topic_id}",
        f"partitions={topic.partition_count}",
        f"replicas={replicas}",
        f"internal={str(topic.is_internal).lower()}",
    )
    lines = [head]
    lines += [_line("config", topic.name, f"{key}={settings[key]}") for key in sorted(settings)]
    lines += [
        _line(
            "partition",
            topic.name,
            str(one.partition),
            f"leader={one.leader if one.leader is not None else 'none'}",
            f"epoch={one.leader_epoch}",
            f"replicas={','.join(map(str, one.replicas))}",
            f"isr={','.join(map(str, one.isr))}",
        )
        for one in topic.partitions
    ]
    return "\n".join(lines)


def _own_settings(
    client: "BlockingClient", found: "Mapping[str, TopicInfo | ClientError]"
) -> dict[str, dict[str, str]]:
    """By topic, the settings that were set for the topic itself."""
    from millstream.client.admin import ConfigResource, ConfigSource
    from millstream.client.errors import ClientError
    from millstream.client.metadata import TopicInfo

    names = [name for name, topic in found.items() if isinstance(topic, TopicInfo)]
    described = (
        client.describe_configs([ConfigResource.topic(name) for name in names]) if names else {}
    )
    return {
        resource.name: {
            entry.name: entry.value or ""
            for entry in entries.values()
            if entry.source is ConfigSource.TOPIC
        }
        for resource, entries in described.items()
        if not isinstance(entries, ClientError)  # not allowed, or just deleted
    }
