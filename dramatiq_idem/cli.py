"""The command ``dramatiq-idem``; each subcommand stands in the package that does its work.

click and rich are an extra, so they are imported when the command runs: without them this module still loads.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["build", "main"]


def build() -> click.Group:
    """Return the command with all its subcommands; needs the extra ``cli``."""
    import click

    from dramatiq_idem.command.doctor import doctor
    from dramatiq_idem.command.forget import forget
    from dramatiq_idem.command.listing import ls
    from dramatiq_idem.command.outcome import STATUSES, MaskingGroup
    from dramatiq_idem.command.repair import repair
    from dramatiq_idem.command.show import show
    from dramatiq_idem.command.watch import watch
    from dramatiq_idem.demo.command import demo

    about = "Look at, and look after, the records that keep redelivered Dramatiq messages from running twice."
    commands = [demo, doctor, forget, ls, repair, show, watch]
    group = MaskingGroup("dramatiq-idem", commands=commands, help=about, epilog=STATUSES)
    click.version_option(package_name="dramatiq-idem")(group)
    return group


def main() -> None:
    """Run the command and exit with its status."""
    try:
        group = build()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise
        sys.exit(f"dramatiq-idem: {error.name} is not installed; try: pip install 'dramatiq-idem[cli]'")
    try:
        group(prog_name="dramatiq-idem")
    except OSError as error:  # nodes that fail are no exception; this is the output, on a full disk for one
        sys.exit(f"Error: the output cannot be written: {error}")
