"""What holds for a message: the policy and the key of its actor, compiled once, and the message's own overrides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dramatiq import Actor, Broker, get_encoder
from dramatiq.broker import MessageProxy
from dramatiq.encoder import PickleEncoder

from dramatiq_idem.keys import MessageLike, compile_fingerprint, compile_key, record_name
from dramatiq_idem.policies import KEPT_KEY, Policy, actor_policy, message_policy

__all__ = ["ActorRules", "MessageRules", "Rulebook"]


@dataclass(frozen=True, slots=True)
class MessageRules:
    """What holds for one delivery.

    Args:
        policy: The options that are in force.
        key: The idempotency key; None if the message yields none, or is not to be protected.
        name: The name of its record; empty without a key.
        fingerprint: Of its arguments; empty if they are not compared.
        is_own_id: Whether the key is the message's id, so that the record need not repeat it.
    """

    policy: Policy
    key: str | None
    name: str = ""
    fingerprint: str = ""
    is_own_id: bool = False


@dataclass(frozen=True, slots=True)
class ActorRules:
    """What holds for an actor's messages unless they say otherwise."""

    policy: Policy
    key_of: Callable[[MessageLike], str | None]
    fingerprint_of: Callable[[MessageLike], str]


class Rulebook:
    """Policies and keys of all actors of a broker.

    Args:
        defaults: The middleware's policy.
        max_ttl_ms: The longest lease that the store grants.
    """

    def __init__(self, defaults: Policy, max_ttl_ms: int) -> None:
        self._defaults = defaults
        self._max_ttl_ms = max_ttl_ms
        self._actors: dict[str, tuple[Actor[..., Any], ActorRules]] = {}

    def declare(self, actor: Actor[..., Any]) -> ActorRules:
        """Compile an actor's options.

        Raises:
            OptionError: One is unknown, out of range or contradicts another, or the key cannot work for this actor.
        """
        name = actor.actor_name
        policy = actor_policy(self._defaults, name, actor.options, max_ttl_ms=self._max_ttl_ms)
        fingerprint_of = compile_fingerprint(policy.fingerprint, actor.fn, name)
        rules = ActorRules(policy, _key_maker(policy, actor, per_message=False), fingerprint_of)
        self._actors[name] = (actor, rules)
        return rules

    def warnings(self) -> list[str]:
        """Return what the declared actors' options give up."""
        given_up = (
            ("on_busy", "skip", "a message may be lost"),
            ("on_done", "run", "a completed message runs again"),
        )
        return [
            f"actor {name!r} has {option}={value!r}: {loss}"
            for name, (_, rules) in self._actors.items()
            for option, value, loss in given_up
            if rules.policy.idempotent and getattr(rules.policy, option) == value
        ]

    def of(self, broker: Broker, message: MessageProxy) -> MessageRules:
        """Return what holds for a message.

        Raises:
            OptionError: The message's own options are wrong.
            KeyDerivationError: No key can be made of its arguments.
        """
        actor = broker.get_actor(message.actor_name)
        known = self._actors.get(actor.actor_name)
        rules = known[1] if known and known[0] is actor else self.declare(actor)
        policy = message_policy(rules.policy, message.options, actor.actor_name)
        if not policy.idempotent:
            return MessageRules(policy, None)
        is_own_id = policy.key == "message_id"
        key = message.options.get(KEPT_KEY)
        if key is None:
            made_by = rules.key_of if policy.key == rules.policy.key else _message_key(str(policy.key), actor)
            key = made_by(message)
            if callable(policy.key) and key is not None:
                message.options[KEPT_KEY] = key  # a function may answer otherwise next time
        if key is None:
            return MessageRules(policy, None)
        scope = actor.actor_name if policy.scope == "actor" else None
        fingerprint = "" if is_own_id or policy.fingerprint is None else rules.fingerprint_of(message)
        return MessageRules(policy, key, record_name(scope, key), fingerprint, is_own_id)


@lru_cache(maxsize=1024)
def _message_key(spec: str, actor: Actor[..., Any]) -> Callable[[MessageLike], str | None]:
    return compile_key(spec, actor.fn, actor.actor_name, encoder_is_pickle=_is_pickle(), per_message=True)


def _key_maker(policy: Policy, actor: Actor[..., Any], *, per_message: bool) -> Callable[[MessageLike], str | None]:
    if not policy.idempotent:
        return lambda _message: None
    return compile_key(policy.key, actor.fn, actor.actor_name, encoder_is_pickle=_is_pickle(), per_message=per_message)


def _is_pickle() -> bool:
    return isinstance(get_encoder(), PickleEncoder)
