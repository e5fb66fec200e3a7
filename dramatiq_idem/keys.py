"""Which messages are the same job: a message in, its idempotency key out.

Keys are compiled once per actor, so that a mistake shows at declaration. Message options never enter a key.

- Arguments are read *as the worker sees them*, after a turn through JSON: the sender still has tuples and integer dict
  keys. Where JSON cannot carry them (another encoder does), they are left alone.
- ``"payload"``: arguments by name with defaults filled in, so ``f(1)`` and ``f(x=1)`` agree, as canonical JSON under
  SHA-256. 1, 1.0, True and "1" differ; NaN is allowed, as in Dramatiq's encoder, and equals itself. What JSON cannot
  represent is an error, since its repr may hold a memory address.
- Template, ``"job:payment:{payment_id}"`` or ``"{event[id]}"``: a field that is missing, None, "" or NaN gives no key,
  or all messages without an id would be duplicates of each other. With several fields, ``%``, ``:``, control
  characters and the template's own separators are percent-encoded inside values: ("a:b", "c") and ("a", "b:c") stay
  apart. Values are text: 1 and "1" are the same. Literal braces are doubled.
- Function: called with the actor's own arguments; returns the key, or None for no key.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from string import Formatter
from typing import Any, TypeAlias
from uuid import UUID

from dramatiq.broker import MessageProxy
from dramatiq.generic import GenericActor
from dramatiq.message import Message

from dramatiq_idem.errors import KeyDerivationError, OptionError

__all__ = ["MAX_KEY_BYTES", "KeySpec", "MessageLike", "compile_fingerprint", "compile_key", "record_name"]

KeySpec: TypeAlias = str | Callable[..., str | None]
MAX_KEY_BYTES = 1024
MessageLike: TypeAlias = Message[Any] | MessageProxy
_Function: TypeAlias = Callable[..., Any]
_Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
_Make: TypeAlias = Callable[[MessageLike], Any]
_UNSAFE = r"%:\x00-\x1f\x7f-\x9f"
_FIELD = re.compile(r"([^\W\d]\w*)((?:\[[^][]+\])*)")


def compile_key(
    spec: KeySpec, fn: _Function, actor_name: str, *, encoder_is_pickle: bool = False, per_message: bool = False
) -> Callable[[MessageLike], str | None]:
    """Return a function from a message to its key, or to None where a template or key function gives nothing.

    Args:
        spec: ``"message_id"``, ``"payload"``, a template or a function: see the module.
        fn: The actor's function, ``actor.fn``. Wrappers with ``__wrapped__`` are looked through, so one that adds
            arguments of its own must set ``__signature__``.
        actor_name: For error messages only; ``record_name`` puts it in front of the key.
        encoder_is_pickle: Messages travel pickled: functions get the arguments untouched, ``"payload"`` is refused.
        per_message: The spec stands on a message: a text without fields is a key, and functions are refused.
    Raises:
        OptionError: At once, if spec can give no key, or one key for all messages.
        KeyDerivationError: From the returned function: a value no key can be made of, a key function that raised, a
            key that is empty, not UTF-8 or longer than 1,024 bytes.
    """
    where = f"actor {actor_name!r}: idempotency_key"
    make = _maker(spec, _Arguments(fn), where, pickled=encoder_is_pickle, per_message=per_message)
    return _guarded(where, lambda message: _checked(make(message)))


def compile_fingerprint(
    choice: str | Sequence[str] | _Function | None, fn: _Function, actor_name: str
) -> Callable[[MessageLike], str]:
    """Return a function that sums up a message's arguments in 22 characters, to notice a key reused for another job.

    Args:
        choice: ``"all"`` arguments, those named, what a function makes of them (any JSON value), or None: then ``"-"``.
    Raises:
        OptionError: At once, if choice names an argument the actor lacks.
        KeyDerivationError: From the returned function, for a value JSON cannot represent.
    """
    where = f"actor {actor_name!r}: idempotency_fingerprint"
    arguments = _Arguments(fn)
    if isinstance(choice, str) and choice != "all":
        raise OptionError(f"{where}: a sequence of names, not {choice!r}")
    names = None if choice is None or choice == "all" or callable(choice) else frozenset(choice)
    arguments.require(names or (), where)

    def fingerprint(message: MessageLike) -> str:
        if choice is None:
            return "-"
        call = _as_worker_sees(message)
        chosen = choice(*call[0], **call[1]) if callable(choice) else arguments.plain(call)
        if names is not None and isinstance(chosen, dict):
            chosen = {name: value for name, value in chosen.items() if name in names}
        return urlsafe_b64encode(_digest(chosen)[:16]).decode().rstrip("=")

    return _guarded(where, fingerprint)


def record_name(scope_actor: str | None, key: str) -> str:
    """Return the name of a key's record: ``charge:K``, or ``:K`` without an actor. No two pairs share a name."""
    scope = "" if scope_actor is None else _percent(_UNSAFE + r"\ud800-\udfff", scope_actor) or "%"
    return f"{scope}:{key}"


def _guarded(where: str, make: _Make) -> _Make:
    def derive(message: MessageLike) -> Any:
        try:
            return make(message)
        except Exception as error:  # Dramatiq would swallow anything else and run the body unprotected
            raise KeyDerivationError(f"{where}: {error}") from error

    return derive


def _maker(spec: object, arguments: _Arguments, where: str, *, pickled: bool, per_message: bool) -> _Make:
    if callable(spec) and not per_message:
        if inspect.iscoroutinefunction(spec) or inspect.iscoroutinefunction(type(spec).__call__):
            raise OptionError(f"{where}: a key function cannot be a coroutine function")

        def by_function(message: MessageLike) -> Any:
            args, kwargs = (message.args, message.kwargs) if pickled else _as_worker_sees(message)
            return spec(*args, **kwargs)

        return by_function
    if not isinstance(spec, str) or not spec:
        raise OptionError(f"{where}: 'message_id', 'payload', a template or (on an actor) a function, not {spec!r}")
    if spec == "message_id":
        return lambda message: message.message_id
    if spec != "payload":
        return _template(spec, arguments, f"{where}={spec!r}", constant_allowed=per_message)
    if pickled:
        raise OptionError(f"{where}='payload' cannot work with PickleEncoder; give a key function")
    return lambda message: f"v1:{_digest(arguments.plain(_as_worker_sees(message))).hex()}"


def _template(template: str, arguments: _Arguments, where: str, *, constant_allowed: bool) -> _Make:
    literals, fields = _parse(template, where)
    if not fields and not constant_allowed:
        raise OptionError(f"{where} names no argument, so all messages would be duplicates of each other")
    arguments.require([name for name, _ in fields], where)
    separators = [re.sub("[A-Za-z0-9%]", "", literal) for literal in literals[1:-1]]
    if not all(separators):
        raise OptionError(f"{where}: put a separator such as ':' between two fields")
    unsafe = _UNSAFE + re.escape("".join(separators)) if separators else ""

    def render(message: MessageLike) -> str | None:
        values = arguments.named(_as_worker_sees(message)) if fields else {}
        parts = [literals[0]]
        for (name, steps), literal in zip(fields, literals[1:], strict=True):
            text = _text(name, (values or {}).get(name), steps)
            if text is None:
                return None
            parts += _percent(unsafe, text) if unsafe else text, literal
        return "".join(parts)

    return render


def _parse(template: str, where: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Split a template into n + 1 literals and n fields, each an argument's name and the items to take from it."""
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from error
    literals, fields = [""], []
    for literal, field, spec, conversion in pieces:
        literals[-1] += literal
        if field is not None:
            match = _FIELD.fullmatch(field)
            if match is None or spec or conversion:
                raise OptionError(f"{where}: field {field!r} must be an argument's name, or name[item], nothing else")
            fields.append((match[1], re.findall(r"\[(.+?)\]", match[2])))
            literals.append("")
    return literals, fields


class _Arguments:
    """The arguments of one actor, by parameter name."""

    def __init__(self, fn: _Function) -> None:
        target: Any = inspect.unwrap(fn, stop=lambda wrapper: hasattr(wrapper, "__signature__"))
        self._signature = inspect.signature(target.perform if isinstance(target, GenericActor) else target)
        parameters = self._signature.parameters.values()
        self._extra = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._defaults = {name: _through_json(value, value) for name, value in defaults.items()}
        self._opaque = {name: value for name, value in defaults.items() if _through_json(value, self) is self}

    def require(self, names: Iterable[str], where: str) -> None:
        known = self._signature.parameters
        unknown = [] if self._extra else [name for name in names if name not in known]
        if unknown:
            raise OptionError(f"{where}: no argument {unknown[0]!r}; the actor has {', '.join(known) or 'none'}")

    def named(self, call: _Call) -> dict[str, Any] | None:
        """Return all arguments by name; None if the actor cannot be called like this (its body will say so)."""
        try:
            bound = self._signature.bind(*call[0], **call[1]).arguments
        except TypeError:
            return None
        return {**bound.get(self._extra, {}), **self._defaults, **bound}

    def plain(self, call: _Call) -> dict[str, Any] | list[Any]:
        """Return what is hashed: arguments by name, without defaults JSON cannot carry: nobody can send their equal."""
        named, opaque = self.named(call), self._opaque
        return list(call) if named is None else {k: v for k, v in named.items() if opaque.get(k, self) is not v}


def _as_worker_sees(message: MessageLike) -> _Call:
    call: _Call = _through_json([message.args, message.kwargs], (message.args, message.kwargs))
    return call


def _through_json(value: object, otherwise: object) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return otherwise


def _digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).digest()


def _text(name: str, value: Any, steps: Sequence[str]) -> str | None:
    """Return an argument, or an item of it, as it stands in a key; None for what is no value."""
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, (list, tuple)) and step.isdecimal():
            value = value[int(step)] if int(step) < len(value) else None
        elif value is not None:
            raise TypeError(f"argument {name!r} has no item {step!r}")
    if value is None:
        return None
    if not isinstance(value, (str, int, float, Decimal, UUID)):
        raise TypeError(f"argument {name!r} is a {type(value).__name__}, neither text nor number")
    is_nan = isinstance(value, (float, Decimal)) and "nan" in str(value).lower()
    return None if is_nan else str(value) or None


def _percent(unsafe: str, text: str) -> str:
    return re.sub(f"[{unsafe}]", lambda m: "".join(f"%{b:02X}" for b in m[0].encode(errors="surrogatepass")), text)


def _checked(key: object) -> str | None:
    if key is None or (isinstance(key, str) and 0 < len(key.encode()) <= MAX_KEY_BYTES):
        return key
    raise ValueError(f"a key must be text of 1 to {MAX_KEY_BYTES:,} bytes; hash its long parts")
