"""Failures for good, as data: what a record keeps of an exception, and what a duplicate gets of it.

Kept are the name of the exception's type and its text, as a JSON list of two; nothing that could be executed. What
comes back from a node is taken for text: a name that is none becomes "Exception", and a reason that is no such list is
the reason for which a message was refused.
"""

from __future__ import annotations

import json

from dramatiq_idem.errors import FailureReplayedError, MessageRefusedError, TakeoversExhaustedError

__all__ = ["encode_failure", "failure_of", "is_failure"]

_LONGEST_NAME = 100
_CUT = "…"


def encode_failure(exception: BaseException, most_bytes: int) -> str:
    """Return an exception's type name and text as JSON; the text is cut where the whole would exceed `most_bytes`.

    The name alone is kept where nothing else fits, so the failure is never without a trace.
    """
    name = type(exception).__name__[:_LONGEST_NAME]
    text = _text_of(exception)
    encoded = _encoded(name, text)
    while len(encoded) > most_bytes and text:
        text = text.removesuffix(_CUT)[: -max(1, (len(encoded) - most_bytes) // 12)]
        text += _CUT if text else ""
        encoded = _encoded(name, text)
    return encoded


def failure_of(reason: str) -> MessageRefusedError:
    """Return a recorded failure as an error: its type has the recorded name, and its text is the recorded one."""
    found = _decoded(reason)
    if found is None:
        return TakeoversExhaustedError(reason)
    name, text = found
    if not name.isidentifier() or len(name) > _LONGEST_NAME:
        name = "Exception"
    # Results store the name of the type and the text of what is raised: that is all of it that callers see.
    error: MessageRefusedError = type(name, (FailureReplayedError,), {})(text)
    return error


def is_failure(reason: str) -> bool:
    """Return whether a failed record's reason is the failure of a body, and not one of ours."""
    return _decoded(reason) is not None


def _text_of(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:  # noqa: BLE001 - of whatever class; the claim has to be given up all the same
        return ""


def _encoded(name: str, text: str) -> str:
    return json.dumps([name, text], separators=(",", ":"))


def _decoded(reason: str) -> tuple[str, str] | None:
    try:
        found = json.loads(reason)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, list) and len(found) == 2 and all(isinstance(part, str) for part in found):
        return found[0], found[1]
    return None
