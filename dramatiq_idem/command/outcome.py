"""How a subcommand ends: its exit status, and the one line that says why."""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = [
    "ERRORS",
    "FAILED",
    "OK",
    "STATUSES",
    "WARNINGS",
    "CommandError",
    "MaskingGroup",
    "TooFewNodesError",
    "WrongUsageError",
    "too_few",
]

OK = 0
FAILED = 1
USAGE = 2
TOO_FEW = 3
WARNINGS = 10
ERRORS = 20

STATUSES = (
    "Exit status: 0 all is well, 1 it could not be done or there is nothing, 2 wrong usage, 3 too few nodes answered; "
    "of doctor: 0 nothing worse than a remark, 10 warnings, 20 errors."
)


class CommandError(click.ClickException):
    """The subcommand ends here, for what it was asked to do cannot be done.

    Args:
        message: Why; it is made one line.
    """

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class WrongUsageError(CommandError):
    """What was asked for can never work."""

    exit_code = USAGE


class TooFewNodesError(CommandError):
    """Too few nodes answered."""

    exit_code = TOO_FEW


class MaskingGroup(click.Group):
    """A group of subcommands whose usage errors repeat no password, wherever on the line it stood."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            hidden = re.sub(r"(//)[^/\s]*@|(password=)[^&#\s]+", r"\1\2***", error.format_message())
            raise click.UsageError(hidden, error.ctx) from None


def too_few(causes: dict[str, str], nodes: int, needed: int) -> TooFewNodesError:
    """Return the error for nodes that did not answer.

    Args:
        causes: What is wrong, by node name.
        nodes: How many are configured.
        needed: How many would have been needed.
    """
    reasons = "; ".join(f"{node}: {cause}" for node, cause in causes.items())
    return TooFewNodesError(f"only {nodes - len(causes)} of {nodes} nodes answered, {needed} are needed ({reasons})")
