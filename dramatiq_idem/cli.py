"""The command ``dramatiq-idem``; each subcommand stands in the package that does its work.

click and rich are an extra, so they are imported when the command runs: without them this module still loads.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command and exit with its status."""
    try:
        import click

        from dramatiq_idem.demo.command import demo
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise
        sys.exit(f"dramatiq-idem: {error.name} is not installed; try: pip install 'dramatiq-idem[cli]'")
    about = "Look at, and look after, the records that keep redelivered Dramatiq messages from running twice."
    group = click.Group("dramatiq-idem", commands=[demo], help=about)
    click.version_option(package_name="dramatiq-idem")(group)
    group(prog_name="dramatiq-idem")
