"""What holds for a message: its own options over its actor's over the middleware's.

One row per option says where it may stand and how it is read. None means "not given"; 0 and False are values. Whatever
is unknown, out of range or contradicts itself is refused, never ignored: an ignored option is an unprotected job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from dramatiq_idem.errors import OptionError
from dramatiq_idem.keys import KeySpec

__all__ = [
    "ACTOR_OPTIONS",
    "DEFERRALS",
    "KEPT_KEY",
    "MESSAGE_OPTIONS",
    "Policy",
    "actor_policy",
    "message_policy",
    "middleware_policy",
]

Fingerprint: TypeAlias = "Literal['all'] | tuple[str, ...] | Callable[..., object] | None"
NO_FINGERPRINT: Final = "none"
"""How an actor says that nothing is compared: None as an option's value means "not given"."""
KEPT_KEY: Final = "idempotency_kept_key"
"""Message option, set by us: the key of the first attempt, for its retries."""
DEFERRALS: Final = "idempotency_deferrals"
"""Message option, set by us on a deferred copy: why, and how often in a row, it was deferred."""

_CARRIED: Final = frozenset({KEPT_KEY, DEFERRALS})
_PREFIX: Final = "idempotency_"
_MIN_LEASE_MS: Final = 100  # what is left after drift and 2 ms must be worth having
_MAX_MS: Final = 100 * 365 * 86_400_000  # the servers refuse a time to live that overflows


@dataclass(frozen=True, slots=True)
class Policy:
    """How the messages of one actor, or one message, are protected.

    Attributes:
        idempotent: Whether they are protected at all.
        key: What makes two messages the same job; see ``dramatiq_idem.keys``.
        lease_ms: Milliseconds after which the claim of a worker that died may be taken over; it is renewed meanwhile.
        retention_ms: Milliseconds for which a completion is remembered. It must exceed the longest redelivery.
        require_key: Whether a message that yields no key is refused instead of run unprotected.
        scope: Whether equal keys of two actors are two jobs ("actor") or one ("namespace").
        fingerprint: What of the arguments must be equal under one key: "all", some by name, what a function makes of
            them, or None for nothing. Not compared for keys by message id.
        on_busy: While another delivery runs the key: put a delayed copy into the queue, wait in the worker, skip (the
            job is lost if the other one dies) or fail into the dead letters.
        on_done: For a duplicate of a completed message: skip, replay the recorded result in place of a run, or run
            again; "auto" skips the same message and replays for another one.
        on_failed: For a duplicate of a message that failed for good: run it, or give it the same failure without a run.
        on_unavailable: Without a quorum: put a delayed copy into the queue, run unprotected, or fail.
        on_lost: When the lease is lost while the body runs: let it finish, or interrupt it.
        on_orphan: When an earlier run ended with its lease: run again, or dead-letter for people to decide.
        max_takeovers: How often runs may end with their lease before the message is dead-lettered.
    """

    idempotent: bool = True
    key: KeySpec = "message_id"
    lease_ms: int = 30_000
    retention_ms: int = 86_400_000
    require_key: bool = False
    scope: Literal["actor", "namespace"] = "actor"
    fingerprint: Fingerprint = "all"
    on_busy: Literal["requeue", "wait", "skip", "fail"] = "requeue"
    on_done: Literal["auto", "skip", "replay", "run"] = "auto"
    on_failed: Literal["run", "replay"] = "run"
    on_unavailable: Literal["requeue", "run", "fail"] = "requeue"
    on_lost: Literal["finish", "interrupt"] = "finish"
    on_orphan: Literal["requeue", "dead_letter"] = "requeue"
    max_takeovers: int = 5


class _Place(Enum):
    MIDDLEWARE = "the middleware"
    ACTOR = "an actor"
    MESSAGE = "a message"


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    field: str
    places: frozenset[_Place]
    parse: Callable[[Any, _Place], Any]  # raises ValueError saying what the value must be

    def shown(self, place: _Place) -> str:
        return self.name.removeprefix(_PREFIX) if place is _Place.MIDDLEWARE else self.name


def middleware_policy(*, max_ttl_ms: int = 30_000, **options: object) -> Policy:
    """Return the defaults for all actors.

    Args:
        max_ttl_ms: The longest lease the nodes grant, in milliseconds.
        options: Named without their prefix: idempotent, key, lease, retention, require_key.
    Raises:
        OptionError: An option is unknown, out of range or contradicts another.
    """
    named = {name if name == "idempotent" else _PREFIX + name: value for name, value in options.items()}
    return _merge(Policy(), named, _Place.MIDDLEWARE, "the middleware", max_ttl_ms)


def actor_policy(
    defaults: Policy, actor_name: str, actor_options: Mapping[str, object], *, max_ttl_ms: int = 30_000
) -> Policy:
    """Return what holds for an actor; options of other middleware are left alone. Raises as ``middleware_policy``."""
    return _merge(defaults, actor_options, _Place.ACTOR, f"actor {actor_name!r}", max_ttl_ms)


def message_policy(policy: Policy, message_options: Mapping[str, object], actor_name: str = "") -> Policy:
    """Return what holds for a message: its actor's policy itself, unless the message has options of ours."""
    given = {name: value for name, value in message_options.items() if name.startswith("idem") and name not in _CARRIED}
    return _merge(policy, given, _Place.MESSAGE, f"a message to actor {actor_name!r}", _MAX_MS) if given else policy


def _merge(base: Policy, options: Mapping[str, object], place: _Place, where: str, max_ttl_ms: int) -> Policy:
    given: dict[str, Any] = {}
    for name, value in options.items():
        if not name.startswith("idem"):
            continue
        option = _OPTIONS.get(name)
        if option is None or place not in option.places:
            raise OptionError(f"{where}: {_misplaced(name, place)}")
        if value is not None:
            given[option.field] = _parsed(option, value, place, where)
    policy = replace(base, **given)
    problem = _check(base, policy, given, place, max_ttl_ms)
    if problem:
        raise OptionError(f"{where}: {problem}")
    return policy


def _parsed(option: _Option, value: object, place: _Place, where: str) -> Any:
    try:
        return option.parse(value, place)
    except ValueError as error:
        raise OptionError(f"{where}: {option.shown(place)} must be {error}, not {value!r}") from None


def _misplaced(name: str, place: _Place) -> str:
    if name in _OPTIONS:
        places = " or ".join(other.value for other in _Place if other in _OPTIONS[name].places)
        return f"{_OPTIONS[name].shown(place)} may stand on {places}, not on {place.value}"
    bare = name.removeprefix(_PREFIX)
    allowed = [option for option in _TABLE if place in option.places]
    shown = {spelt: o.shown(place) for o in allowed for spelt in (o.name, o.name.removeprefix(_PREFIX))}
    close = get_close_matches(bare, shown, n=1)
    unknown = bare if place is _Place.MIDDLEWARE else name
    return f"unknown option {unknown}" + (f"; did you mean {shown[close[0]]}?" if close else "")


def _check(base: Policy, policy: Policy, given: Mapping[str, object], place: _Place, max_ttl_ms: int) -> str | None:
    """Return what makes no sense together; None if all does."""
    asks_for_key = "key" in given or given.get("require_key") is True
    if asks_for_key and not policy.idempotent and place is not _Place.MIDDLEWARE:
        return "an idempotency key has no effect while idempotent is False; leave it out or add idempotent=True"
    if given.get("on_failed") == "replay" and not policy.idempotent and place is not _Place.MIDDLEWARE:
        return "on_failed has no effect while idempotent is False; leave it out or add idempotent=True"
    if policy.on_failed == "replay" and policy.on_done == "run" and place is not _Place.MESSAGE:
        return "on_failed='replay' contradicts on_done='run': what failed would be remembered, but not what succeeded"
    if policy.key == "payload" and base.key != "payload" and "retention_ms" not in given:
        return "the key 'payload' needs a retention next to it, since equal arguments may be meant later"
    if not _MIN_LEASE_MS <= policy.lease_ms <= max_ttl_ms:
        return f"the lease, {policy.lease_ms} ms, must be from {_MIN_LEASE_MS} ms to max_ttl, {max_ttl_ms} ms"
    if policy.retention_ms <= policy.lease_ms:
        return f"the retention, {policy.retention_ms} ms, must exceed the lease, {policy.lease_ms} ms"
    return None


def _boolean(value: object, _place: _Place) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _milliseconds(value: object, place: _Place) -> int:
    if isinstance(value, timedelta) and place is not _Place.MESSAGE:
        value = value // timedelta(milliseconds=1)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_MS:
        raise ValueError("whole milliseconds, from 1 to 100 years" + " or a timedelta" * (place is not _Place.MESSAGE))
    return int(value)


def _key(value: object, place: _Place) -> object:
    if (not isinstance(value, str) or not value) and (place is _Place.MESSAGE or not callable(value)):
        raise ValueError("a text" + " or a function" * (place is not _Place.MESSAGE))
    return value


def _count(value: object, _place: _Place) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number from 0")
    return value


def _fingerprint(value: object, _place: _Place) -> Fingerprint:
    if value == NO_FINGERPRINT:
        return None
    if value == "all" or callable(value):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError("'all', names of arguments, a function, or 'none'")


def _one_of(*choices: str) -> Callable[[object, _Place], object]:
    def parse(value: object, _place: _Place) -> object:
        if value not in choices:
            raise ValueError(" or ".join(map(repr, choices)))
        return value

    return parse


_EVERYWHERE: Final = frozenset(_Place)
_NOT_ON_MESSAGES: Final = _EVERYWHERE - {_Place.MESSAGE}
_ACTOR_ONLY: Final = frozenset({_Place.ACTOR})
_TABLE: Final = (
    _Option("idempotent", "idempotent", _EVERYWHERE, _boolean),
    _Option("idempotency_key", "key", _EVERYWHERE, _key),
    _Option("idempotency_lease", "lease_ms", _NOT_ON_MESSAGES, _milliseconds),
    _Option("idempotency_retention", "retention_ms", _EVERYWHERE, _milliseconds),
    _Option("idempotency_require_key", "require_key", _NOT_ON_MESSAGES, _boolean),
    _Option("idempotency_fingerprint", "fingerprint", _ACTOR_ONLY, _fingerprint),
    _Option("idempotency_on_busy", "on_busy", _NOT_ON_MESSAGES, _one_of("requeue", "wait", "skip", "fail")),
    _Option("idempotency_on_done", "on_done", _EVERYWHERE, _one_of("auto", "skip", "replay", "run")),
    _Option("idempotency_on_failed", "on_failed", _EVERYWHERE, _one_of("run", "replay")),
    _Option("idempotency_on_unavailable", "on_unavailable", _NOT_ON_MESSAGES, _one_of("requeue", "run", "fail")),
    _Option("idempotency_on_lost", "on_lost", _NOT_ON_MESSAGES, _one_of("finish", "interrupt")),
    _Option("idempotency_on_orphan", "on_orphan", _NOT_ON_MESSAGES, _one_of("requeue", "dead_letter")),
    _Option("idempotency_max_takeovers", "max_takeovers", _NOT_ON_MESSAGES, _count),
    _Option("idempotency_scope", "scope", _ACTOR_ONLY, _one_of("actor", "namespace")),
)
_OPTIONS: Final = {option.name: option for option in _TABLE}
ACTOR_OPTIONS: Final = frozenset(option.name for option in _TABLE if _Place.ACTOR in option.places)
MESSAGE_OPTIONS: Final = frozenset(option.name for option in _TABLE if _Place.MESSAGE in option.places)
