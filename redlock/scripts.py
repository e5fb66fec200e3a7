"""The Lua scripts that run inside the nodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib import resources

__all__ = [
    "ACQUIRE",
    "ADMISSION",
    "ADMIT",
    "COUNTER",
    "EXTEND",
    "FENCE",
    "HEAL",
    "MARKER",
    "PING",
    "PLAIN_ACQUIRE",
    "RELEASE",
    "UNDO",
    "Script",
    "load",
]


@dataclass(frozen=True, slots=True)
class Script:
    """A script and how it is called.

    Args:
        name: For events and errors.
        text: Its source.
        by_text: Always send the source. For what may arrive after we left: nobody would be there any more to
            answer a NOSCRIPT.
        grants: Types of the fields when it grants, the leading 1 included; an answer of another form is no vote. None:
            whatever follows it.
    """

    name: str
    text: str
    by_text: bool = False
    grants: tuple[type, ...] | None = None
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


def load(
    package: str, *names: str, head: str = "", by_text: bool = False, grants: tuple[type, ...] | None = None
) -> Script:
    """Join the named files of a package's ``lua`` folder into one script, called after the last of them.

    Comment lines are left out: scripts that travel by text do so with every call.

    Args:
        package: Whose ``lua`` folder it is.
        names: File names without ending, in order.
        head: Source to put in front.
        by_text: As for `Script`.
        grants: As for `Script`.
    """
    folder = resources.files(package) / "lua"
    lines = [line for name in names for line in (folder / f"{name}.lua").read_text("utf-8").splitlines()]
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("--")]
    return Script(names[-1], "\n".join([head, *code]) if head else "\n".join(code), by_text, grants)


ADMISSION = load("redlock", "admission").text
"""Head of every script that may grant something: the function ``admission`` and what it needs."""

ACQUIRE = load("redlock", "acquire", head=ADMISSION, grants=(int, int, int, str))
EXTEND = load("redlock", "owner", "extend", head=ADMISSION)
HEAL = load("redlock", "heal", head=ADMISSION)
COUNTER = load("redlock", "owner", "counter", head=ADMISSION, grants=(int, int, int))
FENCE = load("redlock", "owner", "fence")
RELEASE = load("redlock", "owner", "release", by_text=True)
UNDO = load("redlock", "undo", by_text=True)
ADMIT = load("redlock", "admit", head=ADMISSION, grants=(int, str, int))
MARKER = load("redlock", "marker", head=ADMISSION, grants=(int, str, str, int, int))
PLAIN_ACQUIRE = load("redlock", "plain_acquire")
PING = load("redlock", "ping", by_text=True)
