"""What holds for a message, and which options are refused where."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from enum import IntEnum

import pytest

from dramatiq_idem.errors import OptionError
from dramatiq_idem.policies import (
    ACTOR_OPTIONS,
    MESSAGE_OPTIONS,
    Policy,
    actor_policy,
    message_policy,
    middleware_policy,
)


def by_hand(x):
    """Stand for a key function."""
    return str(x)


def on_actor(defaults=Policy(), /, **options):  # noqa: B008
    return actor_policy(defaults, "pay", options)


def on_message(policy=Policy(), /, **options):  # noqa: B008
    return message_policy(policy, options, "pay")


LEVELS = [
    pytest.param(
        lambda **o: middleware_policy(**{k.removeprefix("idempotency_"): v for k, v in o.items()}), id="middleware"
    ),
    pytest.param(on_actor, id="actor"),
    pytest.param(on_message, id="message"),
]


def test_defaults():
    """Without options a message is protected by its id, for a day."""
    policy = middleware_policy()
    assert policy == Policy(
        idempotent=True,
        key="message_id",
        lease_ms=30_000,
        retention_ms=86_400_000,
        require_key=False,
        scope="actor",
    )


def test_policy_cannot_be_changed():
    """One policy is shared by all messages of an actor."""
    with pytest.raises(FrozenInstanceError):
        Policy().key = "payload"


def test_options_by_place():
    """The names are those of the documentation."""
    assert set(ACTOR_OPTIONS) == {
        "idempotent",
        "idempotency_key",
        "idempotency_lease",
        "idempotency_retention",
        "idempotency_require_key",
        "idempotency_scope",
        "idempotency_fingerprint",
        "idempotency_on_busy",
        "idempotency_on_done",
        "idempotency_on_failed",
        "idempotency_on_unavailable",
        "idempotency_on_lost",
        "idempotency_on_orphan",
        "idempotency_max_takeovers",
    }
    assert set(MESSAGE_OPTIONS) == {
        "idempotent",
        "idempotency_key",
        "idempotency_retention",
        "idempotency_on_done",
        "idempotency_on_failed",
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        pytest.param({"idempotent": False}, "idempotent", False, id="idempotent"),
        pytest.param({"idempotency_key": "job:{x}"}, "key", "job:{x}", id="key"),
        pytest.param({"idempotency_retention": 60_000}, "retention_ms", 60_000, id="retention"),
    ],
)
def test_options_that_may_stand_everywhere(level, options, field, value):
    """ME10: an option counts wherever it may stand."""
    assert getattr(level(**options), field) == value


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        pytest.param({"idempotency_lease": 10_000}, "lease_ms", 10_000, id="lease"),
        pytest.param({"idempotency_lease": timedelta(seconds=5)}, "lease_ms", 5_000, id="lease as timedelta"),
        pytest.param({"idempotency_retention": timedelta(days=2)}, "retention_ms", 172_800_000, id="retention"),
        pytest.param({"idempotency_require_key": True}, "require_key", True, id="require_key"),
        pytest.param({"idempotency_key": by_hand}, "key", by_hand, id="key function"),
    ],
)
def test_options_of_middleware_and_actors(level, options, field, value):
    """ME10: an actor's option counts without send_with_options."""
    assert getattr(level(**options), field) == value


def test_scope_is_an_actors_choice():
    """ME8: two actors share keys only where they say so."""
    assert on_actor(idempotency_scope="namespace").scope == "namespace"


@pytest.mark.parametrize(
    ("place", "misplaced"),
    [
        pytest.param(lambda: middleware_policy(scope="actor"), "scope may stand on an actor", id="scope on middleware"),
        pytest.param(lambda: on_message(idempotency_scope="actor"), "idempotency_scope may stand", id="scope"),
        pytest.param(
            lambda: on_message(idempotency_lease=9_000), "the middleware or an actor, not on a message", id="lease"
        ),
        pytest.param(lambda: on_message(idempotency_require_key=True), "idempotency_require_key", id="require_key"),
    ],
)
def test_option_in_the_wrong_place_is_refused(place, misplaced):
    """MI4: an option that would have no effect is an error."""
    with pytest.raises(OptionError, match=misplaced):
        place()


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        pytest.param(lambda: middleware_policy(leese=1), "the middleware.*leese; did you mean lease", id="middleware"),
        pytest.param(lambda: middleware_policy(idempotency_lease=1), "unknown option idempotency_lease", id="prefixed"),
        pytest.param(lambda: on_actor(idempotency_ky="a"), "'pay'.*did you mean idempotency_key", id="actor"),
        pytest.param(lambda: on_actor(idempotancy_key="a"), "did you mean idempotency_key", id="actor, prefix"),
        pytest.param(lambda: on_actor(idempotancy=True), "unknown option idempotancy; did", id="actor, without prefix"),
        pytest.param(lambda: on_message(idempotency_retntion=1), "did you mean idempotency_retention", id="message"),
        pytest.param(lambda: on_message(idempotency_colour=1), "colour$", id="nothing close"),
    ],
)
def test_unknown_option_is_refused(place, hint):
    """MI4: a misspelt option names the actor and the option that was meant."""
    with pytest.raises(OptionError, match=hint):
        place()


def test_options_of_others_are_left_alone():
    """Actors and messages carry Dramatiq's options as well."""
    assert on_actor(max_retries=0, time_limit="x") == Policy()
    assert on_message(retries=1, eta=None, pipe_target={}) == Policy()


def test_message_without_our_options_gets_its_actors_policy_itself():
    """Nothing is built for the usual message."""
    policy = Policy(key="job:{x}")
    assert message_policy(policy, {"retries": 1}) is policy


def test_nearest_option_wins():
    """ME10: message over actor over middleware."""
    defaults = middleware_policy(retention=60_000, lease=1_000, require_key=True)
    actor = on_actor(defaults, idempotency_retention=50_000, idempotency_key="{x}")
    assert actor == Policy(key="{x}", retention_ms=50_000, lease_ms=1_000, require_key=True)
    assert on_message(actor, idempotency_retention=40_000) == Policy(
        key="{x}", retention_ms=40_000, lease_ms=1_000, require_key=True
    )


def test_false_is_a_value_and_does_not_fall_through():
    """ME10: a nearer False wins over a True further out."""
    assert on_actor(Policy(require_key=True), idempotency_require_key=False).require_key is False
    assert on_message(Policy(key="{x}"), idempotent=False).idempotent is False


def test_true_on_a_message_wins_over_the_actors_false():
    """ME10: one message may be protected where its actor is not."""
    assert on_message(Policy(idempotent=False), idempotent=True, idempotency_key="k").idempotent is True


@pytest.mark.parametrize("level", LEVELS)
def test_none_is_not_given(level):
    """Dramatiq's None means that an option is absent."""
    assert level(idempotent=None, idempotency_key=None, idempotency_retention=None) == Policy()


class Span(IntEnum):
    """Whole numbers with names, as settings modules have them."""

    QUARTER = 15_000


@pytest.mark.parametrize("option", ["idempotency_lease", "idempotency_retention"])
def test_whole_number_of_another_type_is_one(option):
    """It goes to the nodes as it is, and a packer need not know the type."""
    policy = on_actor(**{"idempotency_lease": 10_000, option: Span.QUARTER})
    assert {type(policy.lease_ms), type(policy.retention_ms)} == {int}
    assert Span.QUARTER in (policy.lease_ms, policy.retention_ms)


@pytest.mark.parametrize("option", ["idempotency_lease", "idempotency_retention"])
@pytest.mark.parametrize(
    "value",
    [True, 30_000.0, float("nan"), "30000", -1, 0, 10**400, timedelta(0), timedelta(seconds=-1), timedelta.max, [1]],
    ids=repr,
)
def test_bad_milliseconds_are_refused(option, value):
    """The error names the actor and the option."""
    with pytest.raises(OptionError, match=f"actor 'pay': {option} must be whole milliseconds"):
        on_actor(**{option: value})


def test_timedelta_on_a_message_is_refused():
    """Message options are JSON."""
    with pytest.raises(OptionError, match="milliseconds"):
        on_message(idempotency_retention=timedelta(days=1))


@pytest.mark.parametrize("value", [0, 1, "no", []], ids=repr)
@pytest.mark.parametrize("option", ["idempotent", "idempotency_require_key"])
def test_only_booleans_switch(option, value):
    """MI4: no text that looks like a no means yes."""
    with pytest.raises(OptionError, match=f"{option} must be True or False"):
        on_actor(**{option: value})


@pytest.mark.parametrize("value", ["global", "", 1, ["actor"]], ids=repr)
def test_unknown_scope_is_refused(value):
    """MI4: the error lists what there is."""
    with pytest.raises(OptionError, match="'actor' or 'namespace'"):
        on_actor(idempotency_scope=value)


@pytest.mark.parametrize("value", ["", 7, False, b"k", ["a"]], ids=repr)
@pytest.mark.parametrize("level", LEVELS)
def test_key_must_be_text_or_function(level, value):
    """MI4: anything else is refused where it stands."""
    with pytest.raises(OptionError, match="key must be a text"):
        level(idempotency_key=value)


def test_key_function_on_a_message_is_refused():
    """Message options are JSON."""
    with pytest.raises(OptionError, match="must be a text, not"):
        on_message(idempotency_key=by_hand)


@pytest.mark.parametrize("lease", [100, 30_000])
def test_lease_at_its_limits(lease):
    """The limits themselves are allowed."""
    assert on_actor(idempotency_lease=lease).lease_ms == lease


@pytest.mark.parametrize("lease", [99, 30_001])
def test_lease_beyond_its_limits_is_refused(lease):
    """Too short a lease is over before it is trusted; too long a one is not granted."""
    with pytest.raises(OptionError, match=r"actor 'pay'.*lease"):
        on_actor(idempotency_lease=lease)
    with pytest.raises(OptionError, match=r"the middleware.*lease"):
        middleware_policy(lease=lease)


def test_longest_lease_follows_max_ttl():
    """The nodes grant no lease beyond max_ttl."""
    assert actor_policy(Policy(), "pay", {"idempotency_lease": 60_000}, max_ttl_ms=60_000).lease_ms == 60_000
    with pytest.raises(OptionError, match="max_ttl, 10000 ms"):
        middleware_policy(max_ttl_ms=10_000)


@pytest.mark.parametrize("level", LEVELS)
def test_retention_must_exceed_the_lease(level):
    """A completion forgotten while its lease lives would protect nothing."""
    assert level(idempotency_retention=30_001).retention_ms == 30_001
    with pytest.raises(OptionError, match="retention, 30000 ms, must exceed the lease"):
        level(idempotency_retention=30_000)


@pytest.mark.parametrize("level", LEVELS)
def test_payload_needs_a_retention_of_its_own(level):
    """Equal payloads may be meant, so nobody gets a day by default."""
    assert level(idempotency_key="payload", idempotency_retention=60_000).retention_ms == 60_000
    with pytest.raises(OptionError, match="'payload' needs a retention"):
        level(idempotency_key="payload")


def test_payload_does_not_take_the_retention_meant_for_other_keys():
    """A retention given further out was given for message ids."""
    with pytest.raises(OptionError, match="'payload' needs a retention"):
        on_actor(middleware_policy(retention=60_000), idempotency_key="payload")


def test_payload_keeps_the_retention_given_with_it():
    """Once given, it holds for the levels below."""
    defaults = middleware_policy(key="payload", retention=60_000)
    assert on_message(on_actor(defaults), idempotency_key="payload").retention_ms == 60_000


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(lambda: on_actor(idempotent=False, idempotency_key="{x}"), id="actor"),
        pytest.param(lambda: on_actor(idempotent=False, idempotency_require_key=True), id="require_key"),
        pytest.param(lambda: on_message(idempotent=False, idempotency_key="k"), id="message"),
        pytest.param(lambda: on_actor(Policy(idempotent=False), idempotency_key="{x}"), id="off further out"),
        pytest.param(lambda: on_message(Policy(idempotent=False), idempotency_key="k"), id="off at the actor"),
    ],
)
def test_key_without_effect_is_refused(place):
    """MI4: whoever gives a key believes to be protected."""
    with pytest.raises(OptionError, match=r"'pay'.*add idempotent=True"):
        place()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param(lambda: on_actor(idempotent=False, idempotency_on_failed="replay"), "no effect", id="off"),
        pytest.param(
            lambda: on_actor(Policy(idempotent=False), idempotency_on_failed="replay"),
            "no effect",
            id="off further out",
        ),
        pytest.param(
            lambda: on_actor(idempotency_on_done="run", idempotency_on_failed="replay"), "contradicts", id="on_done"
        ),
        pytest.param(
            lambda: on_actor(Policy(on_done="run"), idempotency_on_failed="replay"), "contradicts", id="on_done outside"
        ),
        pytest.param(
            lambda: on_actor(Policy(on_failed="replay"), idempotency_on_done="run"),
            "contradicts",
            id="outside",
        ),
        pytest.param(lambda: middleware_policy(on_done="run", on_failed="replay"), "contradicts", id="middleware"),
        pytest.param(lambda: on_actor(idempotency_on_failed="skip"), "'run' or 'replay'", id="unknown"),
    ],
)
def test_failures_that_cannot_be_remembered_are_refused(place, said):
    """MG6, MI4: whoever asks for it has an actor that remembers its successes."""
    with pytest.raises(OptionError, match=said):
        place()


def test_one_message_may_ask_to_be_run_again_where_failures_are_remembered():
    """What a person says about one message contradicts nothing."""
    policy = Policy(on_failed="replay")
    assert message_policy(policy, {"idempotency_on_failed": "run"}).on_failed == "run"
    assert message_policy(policy, {"idempotency_on_done": "run"}).on_done == "run"


def test_actor_that_is_off_may_say_that_no_key_is_required():
    """What agrees is no contradiction."""
    policy = on_actor(Policy(require_key=True), idempotent=False, idempotency_require_key=False)
    assert policy == Policy(idempotent=False)


def test_middleware_may_be_off_with_a_key_for_those_who_switch_on():
    """Protection may be opt-in, with one key for all who opt in."""
    defaults = middleware_policy(idempotent=False, key="{x}")
    assert on_actor(defaults).idempotent is False
    assert on_actor(defaults, idempotent=True) == Policy(key="{x}")
