"""Which nodes are meant, and the options that all subcommands share."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import click

from dramatiq_idem.command.outcome import CommandError, WrongUsageError
from dramatiq_idem.record import Quorums
from redlock import NODE_RULES, Settings, SettingsError, nodes_id, parse_nodes, quorum_size

__all__ = ["VARIABLE", "Span", "Target", "on_nodes"]

VARIABLE = "DRAMATIQ_IDEM_NODES"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Target:
    """The nodes that a subcommand is about.

    Args:
        urls: Their addresses, passwords included.
        namespace: Of the middleware.
        write_quorum: As given; None for a majority.
        timeout: Seconds that a node has to answer.
        tolerate: Rules that are not held against a server.
        as_json: Whether the outcome is printed as one JSON document.
    """

    urls: tuple[str, ...]
    namespace: str = "idem"
    write_quorum: int | None = None
    timeout: float = 2.0
    tolerate: tuple[str, ...] = ()
    as_json: bool = False

    @property
    def quorums(self) -> Quorums:
        """How many nodes are needed; raises WrongUsageError if that cannot be."""
        nodes = len(self.urls)
        write = quorum_size(nodes) if self.write_quorum is None else self.write_quorum
        if not quorum_size(nodes) <= write <= nodes:
            text = f"--write-quorum must be from {quorum_size(nodes)} to {nodes} for {nodes} nodes, not {write}"
            raise WrongUsageError(text)
        return Quorums(nodes, write)

    def settings(self, *, restart_guard: bool = True) -> Settings:
        """Return what holds for the namespace; raises SettingsError for nodes that cannot be read, or stand twice."""
        return Settings(
            namespace=self.namespace,
            node_timeout=self.timeout,
            restart_guard=restart_guard,
            nodes_id=nodes_id(parse_nodes(self.urls, self.tolerate)),
        )

    def masked(self, text: str) -> str:
        """Return a text without the passwords of the addresses, wherever they may have got into it from."""
        for url in self.urls:
            address = url.partition("://")[2] or url
            found = [address.rpartition("@")[0].partition(":")[2], *re.findall(r"password=([^&#]+)", address)]
            for secret in filter(None, found):
                text = text.replace(secret, "***").replace(unquote(secret), "***")
        return text


class _NodeUrl(click.types.StringParamType):
    """A node's address; several stand in the environment with commas in between."""

    name = "url"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value).strip()


class Span(click.types.FloatParamType):
    """A length of time in seconds: 90, 90s, 15m, 2h or 3d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read what was given."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is none; write 90s, 15m, 2h or 3d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


def on_nodes(function: Callable[..., int]) -> Callable[..., None]:
    """Give a subcommand the shared options, as its first argument `Target`; what it returns is the exit status."""

    @functools.wraps(function)
    def run(
        node: tuple[str, ...],
        namespace: str,
        write_quorum: int | None,
        timeout: float,
        tolerate: tuple[str, ...],
        *,
        as_json: bool,
        **options: Any,
    ) -> None:
        urls = tuple(filter(None, node))
        target = Target(urls, namespace, write_quorum, timeout, tolerate, as_json)
        try:
            if not urls and not options.get("acl"):
                raise WrongUsageError(f"which nodes? give each with --node, or all in {VARIABLE}")
            status = function(target, **options)
        except SettingsError as error:
            raise _told(target, WrongUsageError(str(error))) from error
        except CommandError as error:
            raise _told(target, error) from error
        click.get_current_context().exit(status)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--node",
        type=_NodeUrl(),
        multiple=True,
        envvar=VARIABLE,
        show_envvar=True,
        help="Address of a node, redis://, rediss:// or unix://; once for each. In the environment with commas in "
        "between, which also keeps passwords out of the list of processes; a comma inside one is written %2C.",
    ),
    click.option("--namespace", default="idem", show_default=True, help="Of the middleware."),
    click.option(
        "--write-quorum", type=click.IntRange(min=1), help="Of the middleware; default a majority of the nodes."
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0.05, max=30.0),
        default=2.0,
        show_default=True,
        help="Seconds that a node has to answer.",
    ),
    click.option(
        "--tolerate", type=click.Choice(NODE_RULES), multiple=True, help="As in the middleware's option `tolerate`."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else, on stdout."),
)


def _told(target: Target, error: CommandError) -> CommandError:
    """Return an error without secrets; with --json it is the document."""
    text = target.masked(error.message)
    if target.as_json:
        click.echo(json.dumps({"error": text, "status": error.exit_code}))
    return type(error)(text)
