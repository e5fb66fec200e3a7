"""Which messages share a key, and which specs and values are refused."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import string
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import dramatiq
import pytest
from dramatiq.asyncio import async_to_sync
from dramatiq.broker import MessageProxy
from dramatiq.brokers.stub import StubBroker
from dramatiq.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from dramatiq_idem.errors import KeyDerivationError, OptionError
from dramatiq_idem.keys import MAX_KEY_BYTES, compile_fingerprint, compile_key, record_name

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
sent_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.booleans(), inner, max_size=3)
    ),
    max_leaves=8,
)


def charge(x, y=None, *rest, currency="eur", **more):
    """Stand for an actor's function with every kind of parameter."""


def pay(payment_id=None, part=None, event=None):
    """Stand for an actor's function whose arguments templates name."""


def message(*args, **kwargs):
    return Message(queue_name="default", actor_name="charge", args=args, kwargs=kwargs, options={})


def received(sent):
    return MessageProxy(Message.decode(sent.encode()))


def payload(sent, fn=charge):
    return compile_key("payload", fn, "charge")(sent)


def from_template(template, *args, **kwargs):
    return compile_key(template, pay, "pay")(message(*args, **kwargs))


def exact(value):
    """Return a text that differs wherever two values are different JSON."""
    return json.dumps(value, sort_keys=True)


# The message's id


def test_message_id_is_the_key_itself():
    """The default key can be read and found by people."""
    sent = message(1)
    assert compile_key("message_id", charge, "charge")(sent) == sent.message_id


def test_same_arguments_under_another_message_id_are_another_key():
    """Equal payloads may be meant, so the default keeps them apart."""
    derive = compile_key("message_id", charge, "charge")
    assert derive(message(1)) != derive(message(1))


# Payload


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(message(x=1), id="by name"),
        pytest.param(message(1, None), id="default by position"),
        pytest.param(message(y=None, x=1), id="default by name"),
        pytest.param(message(1, currency="eur"), id="keyword-only default"),
    ],
)
def test_spellings_of_one_call_share_a_key(spelling):
    """ME2: the same call, spelled differently, is the same job."""
    assert payload(spelling) == payload(message(1))


def test_order_of_names_does_not_matter():
    """ME2: dicts and keyword arguments have no order."""
    assert payload(message({"a": 1, "b": 2}, p=1, q=2)) == payload(message({"b": 2, "a": 1}, q=2, p=1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(message(1), message(1.0), id="int and float"),
        pytest.param(message(1), message(True), id="int and bool"),
        pytest.param(message(1), message("1"), id="int and text"),
        pytest.param(message(None), message("None"), id="None and its name"),
        pytest.param(message(None), message({}), id="None and empty"),
        pytest.param(message("a", "b"), message(["a", "b"]), id="two and a list of two"),
        pytest.param(message(1, 2, 3), message(1, 2, [3]), id="rest and a list"),
        pytest.param(message(1, z=2), message(1, more={"z": 2}), id="extra name and a dict"),
        pytest.param(message("1_b-2"), message("1", "2"), id="separators in text"),
        pytest.param(message("1", "2"), message(1, 2), id="texts and numbers"),
    ],
)
def test_different_payloads_have_different_keys(one, other):
    """ME1: what JSON tells apart is never the same job."""
    assert payload(one) != payload(other)


def test_near_identical_triples_all_differ():
    """ME1: 10,000 triples made of the characters that join things collide nowhere."""
    atoms = [
        "",
        "1",
        "_",
        "-",
        ":",
        "1_",
        "_1",
        "1-",
        "-1",
        "1:",
        ":1",
        "a=1",
        '"',
        ",",
        "[",
        "]",
        "\\",
        "null",
        "1_b-2",
    ]
    atoms += [1, 1.5, None]
    triples = [(a, b, c) for a in atoms for b in atoms for c in atoms][:10_000]
    derive = compile_key("payload", lambda a, b, c: None, "triple")
    assert len(triples) == 10_000
    assert len({derive(message(*triple)) for triple in triples}) == 10_000


@given(sent_values, sent_values)
@example((1, 2), {1: 2})
@example({1: "a", "1": "b"}, {True: 1})
def test_sender_and_worker_derive_the_same_payload_key(x, y):
    """ME5: JSON turns tuples into lists and integer keys into text, and the key does not change."""
    sent = message(x, y=y)
    assert payload(sent) == payload(received(sent))


@given(json_values, json_values)
@example(1, 1.0)
@example(0, False)
def test_payload_keys_agree_exactly_where_the_json_does(one, other):
    """ME1: the payload key is injective on JSON values."""
    assert (payload(message(one)) == payload(message(other))) == (exact(one) == exact(other))


def test_message_options_never_enter_the_payload_key():
    """Retries and brokers change options, and the job stays the same."""
    sent = message(1)
    assert payload(sent) == payload(sent.copy(options={"retries": 2, "eta": 5, "traceback": "..."}))


def test_nan_equals_itself():
    """Dramatiq's encoder sends NaN, so it is a value like others."""
    assert payload(message(float("nan"))) == payload(message(float("nan"))) != payload(message(None))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"1", Decimal(1), {(1, 2): 3}], ids=lambda v: type(v).__name__)
def test_payload_that_json_cannot_represent_is_an_error(value):
    """ME4: no key holds a memory address, and no such job runs unprotected in silence."""
    with pytest.raises(KeyDerivationError, match=r"actor 'charge'.*idempotency_key"):
        payload(message(value))


def test_cyclic_payload_is_an_error():
    """ME4: a value that contains itself has no key."""
    cycle = []
    cycle.append(cycle)
    with pytest.raises(KeyDerivationError):
        payload(message(cycle))


def test_default_that_json_cannot_represent_is_left_out():
    """ME4: a sentinel default is never sent, so it neither blocks the key nor enters it."""

    def sentinel(x, path=Path("here"), missing=object()):  # noqa: B008
        pass

    assert payload(message(1), sentinel) == payload(message(x=1), sentinel) != payload(message(1, "here"), sentinel)


def test_arguments_that_do_not_fit_are_hashed_as_they_are():
    """The body will raise its own TypeError; until then the payload still has a key."""

    def no_arguments():
        pass

    one, other = payload(message(1), no_arguments), payload(message(2), no_arguments)
    assert one != other
    assert one == payload(message(1), no_arguments)


def test_payload_key_names_its_version_and_hash():
    """A later way of hashing can be told from this one; this value is part of the format."""
    assert payload(message(1), lambda x, y=None: None) == ("v1:" + hashlib.sha256(b'{"x":1,"y":null}').hexdigest())


async def async_charge(x, y=None):
    """Stand for a coroutine actor."""


class AsyncCallable:
    """Stand for an object that is called with await."""

    async def __call__(self, x):
        return "key"


class ClassBased:
    """Stand for a callable object."""

    def __call__(self, x, y=None):
        pass


def wrapped_twice():
    inner = async_to_sync(async_charge)

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner(*args, **kwargs)

    return outer


def generic_actor():
    class Charge(dramatiq.GenericActor):
        class Meta:
            broker = StubBroker(middleware=[])

        def perform(self, x, y=None):
            pass

    return functools.wraps(Charge.fn)(lambda *args, **kwargs: None)


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(async_to_sync(async_charge), id="coroutine actor"),
        pytest.param(wrapped_twice(), id="wrapped again"),
        pytest.param(ClassBased(), id="callable object"),
        pytest.param(generic_actor(), id="class-based actor"),
    ],
)
def test_wrapped_functions_keep_their_parameters(fn):
    """ME2: the signature is the one the author wrote, whatever was wrapped around it."""
    assert payload(message(1), fn) == payload(message(x=1), fn) == payload(message(1, None), fn)
    assert compile_key("job:{x}", fn, "charge")(message(7)) == "job:7"
    with pytest.raises(OptionError):
        compile_key("job:{z}", fn, "charge")


def test_decorator_that_adds_arguments_says_so_by_its_signature():
    """A wrapper's own signature is what messages are bound to."""

    def inner(session, x, y=None):
        pass

    @functools.wraps(inner)
    def outer(*args, **kwargs):
        return inner("session", *args, **kwargs)

    outer.__signature__ = inspect.signature(lambda x, y=None: None)
    assert payload(message(1), outer) == payload(message(x=1), outer)
    assert compile_key("job:{x}", outer, "charge")(message(7)) == "job:7"


# Templates


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        pytest.param("job:payment:{payment_id}", ("p-1",), "job:payment:p-1", id="text"),
        pytest.param("{payment_id}", (42,), "42", id="int"),
        pytest.param("{payment_id}", (0,), "0", id="zero is a value"),
        pytest.param("{payment_id}", (False,), "False", id="False is a value"),
        pytest.param("{payment_id}", (1.5,), "1.5", id="float"),
        pytest.param("{payment_id}", (Decimal("1.50"),), "1.50", id="decimal of another encoder"),
        pytest.param("{payment_id}", (UUID(int=1),), "00000000-0000-0000-0000-000000000001", id="UUID"),
        pytest.param("{payment_id}", ("a:b%",), "a:b%", id="one field needs no escapes"),
        pytest.param("{payment_id}:{part}", ("a:b", "c%\n"), "a%3Ab:c%25%0A", id="several fields do"),
        pytest.param("{payment_id}-{part}", ("a-b", "ü"), "a%2Db-ü", id="and escape their own separator"),
        pytest.param("{event[id]}", (None, None, {"id": 7}), "7", id="item of a dict"),
        pytest.param("{event[1]}", (None, None, {1: "x"}), "x", id="integer key"),
        pytest.param("{event[a][1]}", (None, None, {"a": ("x", "y")}), "y", id="item of a list"),
        pytest.param("{{{payment_id}}}", ("a",), "{a}", id="doubled braces"),
        pytest.param("🧾:{payment_id}", ("\x00*{}",), "🧾:\x00*{}", id="ME14: any character"),
    ],
)
def test_template_is_filled_with_arguments(template, args, key):
    """A template gives the same key to the sender and to the worker."""
    assert from_template(template, *args) == key


@pytest.mark.parametrize(
    ("template", "args"),
    [
        pytest.param("{payment_id}", (), id="left to its default None"),
        pytest.param("{payment_id}", (None, "other"), id="None"),
        pytest.param("{payment_id}", ("",), id="empty"),
        pytest.param("{payment_id}", (float("nan"),), id="NaN"),
        pytest.param("{payment_id}", (Decimal("nan"),), id="decimal NaN"),
        pytest.param("{payment_id}:{part}", ("a", None), id="one of two"),
        pytest.param("{event[id]}", (None, None, None), id="item of None"),
        pytest.param("{event[id]}", (None, None, {}), id="no such item"),
        pytest.param("{event[3]}", (None, None, [1]), id="list too short"),
        pytest.param("{payment_id}", (1, 2, 3, 4), id="arguments that do not fit"),
    ],
)
def test_template_without_a_value_gives_no_key(template, args):
    """ME6: messages without an id must not become duplicates of each other."""
    assert from_template(template, *args) is None


@pytest.mark.parametrize(
    ("template", "args"),
    [
        pytest.param("{payment_id}", ([1],), id="list"),
        pytest.param("{payment_id}", ({},), id="dict"),
        pytest.param("{payment_id}", (object(),), id="object"),
        pytest.param("{payment_id}", (b"1",), id="bytes"),
        pytest.param("{event[id]}", (None, None, "text"), id="item of text"),
        pytest.param("{event[id]}", (None, None, [1]), id="name in a list"),
        pytest.param("{event[-1]}", (None, None, [1]), id="negative index"),
    ],
)
def test_template_refuses_values_without_a_text_of_their_own(template, args):
    """ME4: no repr ever becomes part of a key."""
    with pytest.raises(KeyDerivationError, match="argument"):
        from_template(template, *args)


def test_template_does_not_mind_the_other_arguments():
    """Another encoder may carry, next to the field, what JSON cannot."""
    cycle = []
    cycle.append(cycle)
    assert from_template("{payment_id}", 7, cycle) == from_template("{payment_id}", 7, object()) == "7"


def test_template_reads_extra_keyword_arguments():
    """An actor with **kwargs takes any name, so a template may use one."""
    derive = compile_key("{order_id}", charge, "charge")
    assert derive(message(1, order_id=7)) == "7"
    assert derive(message(1)) is None


@given(st.tuples(st.text(min_size=1), st.text(min_size=1)), st.tuples(st.text(min_size=1), st.text(min_size=1)))
@example(("a:b", "c"), ("a", "b:c"))
@example(("a", "%3A"), ("a", ":"))
@example(("1-2", "3"), ("1", "2-3"))
@example(("a]b", "c"), ("a", "b]c"))
@example(("a\\^b", "c"), ("a", "b\\^c"))
@pytest.mark.parametrize(
    "template", ["{payment_id}:{part}", "x{payment_id}-a_{part}y", "{payment_id}]{part}", "{payment_id}\\^{part}"]
)
def test_values_cannot_move_the_separator(template, one, other):
    """ME1: two pairs share a key only if they are equal."""
    assert (from_template(template, *one) == from_template(template, *other)) == (one == other)


def test_each_actor_has_its_own_template():
    """ME7: the first template compiled does not win for every actor."""
    by_user = compile_key("{user}", lambda user, product: None, "a")
    by_product = compile_key("{product}", lambda user, product: None, "b")
    assert (by_user(message(1, 2)), by_product(message(1, 2))) == ("1", "2")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param(
            "job:{order}", "no argument 'order'; the actor has payment_id, part, event", id="unknown argument"
        ),
        pytest.param("job", "duplicates of each other", id="no field"),
        pytest.param("message-id", "duplicates of each other", id="misspelt choice"),
        pytest.param("job:{{payment_id}}", "duplicates of each other", id="only doubled braces"),
        pytest.param("job:{payment_id", "expected '}'", id="open brace"),
        pytest.param("job:payment_id}", "Single '}'", id="closing brace"),
        pytest.param("{}", "field ''", id="empty field"),
        pytest.param("{0}", "field '0'", id="positional field"),
        pytest.param("{event.id}", "field 'event.id'", id="attribute"),
        pytest.param("{event.__class__}", "field 'event.__class__'", id="dunder attribute"),
        pytest.param("{event[id].x}", "nothing else", id="attribute of an item"),
        pytest.param("{event[]}", "Empty attribute|field", id="empty item"),
        pytest.param("{payment_id!r}", "field 'payment_id'", id="conversion"),
        pytest.param("{payment_id:>{part}}", "field 'payment_id'", id="nested format"),
        pytest.param("{payment_id:.2f}", "field 'payment_id'", id="format"),
        pytest.param("{payment_id}{part}", "separator", id="fields side by side"),
        pytest.param("{payment_id}a1{part}", "separator", id="separator that values are made of"),
        pytest.param("{payment_id}%{part}", "separator", id="escape character as separator"),
        pytest.param("", "not ''", id="empty"),
        pytest.param(None, "not None", id="None"),
        pytest.param(7, "not 7", id="number"),
        pytest.param(async_charge, "coroutine", id="coroutine function"),
        pytest.param(functools.partial(async_charge, 1), "coroutine", id="partial of one"),
        pytest.param(AsyncCallable(), "coroutine", id="object with a coroutine function"),
    ],
)
def test_spec_that_cannot_work_is_refused_at_declaration(spec, problem):
    """MI4: the error names the actor and the option, before any message is sent."""
    with pytest.raises(OptionError, match=problem) as refusal:
        compile_key(spec, pay, "pay")
    assert str(refusal.value).startswith("actor 'pay': idempotency_key")


def test_payload_of_pickled_messages_is_refused():
    """A pickled set has another order in each process, so only a function can tell what is the same."""
    with pytest.raises(OptionError, match="PickleEncoder"):
        compile_key("payload", pay, "pay", encoder_is_pickle=True)


# Functions


def test_function_gets_the_arguments_as_the_worker_sees_them():
    """ME5: sender and worker call the function with equal arguments."""
    calls = []
    derive = compile_key(lambda *args, **kwargs: calls.append((args, kwargs)), charge, "charge")
    sent = message((1, 2), y={1: 2})
    assert derive(sent) is derive(received(sent)) is None
    assert calls == [(([1, 2],), {"y": {"1": 2}})] * 2


def test_function_cannot_change_the_arguments_of_the_job():
    """A key function that pops from a dict does not take it from the body."""
    sent = message({"id": 7})
    assert compile_key(lambda x: str(x.pop("id")), charge, "charge")(sent) == "7"
    assert sent.args == ({"id": 7},)


def test_function_gets_pickled_arguments_untouched():
    """With PickleEncoder the worker sees the objects themselves."""
    derive = compile_key(lambda x, y: f"{x!r}{sorted(y)}", charge, "charge", encoder_is_pickle=True)
    assert derive(message((1,), {3, 1})) == "(1,)[1, 3]"
    assert derive(message((1,), [3, 1])) == "(1,)[1, 3]"


def test_function_of_values_json_cannot_carry_gets_them_as_they_are():
    """Another encoder carried them, so sender and worker have equal ones."""
    assert compile_key(lambda x: x.hex, charge, "charge")(message(UUID(int=1))) == f"{1:032x}"


@pytest.mark.parametrize("result", ["", 7, b"key", object()], ids=["empty", "int", "bytes", "object"])
def test_function_that_returns_no_text_is_an_error(result):
    """ME4: only a text or None is taken from a key function."""
    with pytest.raises(KeyDerivationError):
        compile_key(lambda x: result, charge, "charge")(message(1))


def test_function_that_raises_is_an_error_with_its_cause():
    """The body never runs unprotected because the key function failed."""
    with pytest.raises(KeyDerivationError, match="actor 'charge'") as failure:
        compile_key(lambda x: {}[x], charge, "charge")(message(1))
    assert isinstance(failure.value.__cause__, KeyError)


# Keys on messages


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        pytest.param("order:7", "order:7", id="a key of its own"),
        pytest.param("a{{b}}", "a{b}", id="doubled braces"),
        pytest.param("pay:{payment_id}", "pay:1", id="template"),
    ],
)
def test_text_on_a_message_may_be_a_key_of_its_own(spec, key):
    """ME10: on one message a constant is no trap."""
    assert compile_key(spec, pay, "pay", per_message=True)(message(1)) == key


@pytest.mark.parametrize(
    "spec", [lambda x: "k", None, "", "{", "{order}"], ids=["function", "None", "", "brace", "name"]
)
def test_unusable_key_on_a_message_is_refused(spec):
    """MI4: a message is held to the same rules."""
    with pytest.raises(OptionError):
        compile_key(spec, pay, "pay", per_message=True)


# Limits


@pytest.mark.parametrize("character", ["a", "é", "🧾"])
def test_longest_key_is_counted_in_bytes(character):
    """ME14: 1,024 bytes pass, one more does not."""
    fits = MAX_KEY_BYTES // len(character.encode())
    assert from_template("{payment_id}", character * fits) == character * fits
    with pytest.raises(KeyDerivationError, match="1,024"):
        from_template("{payment_id}", character * fits + "a")


def test_lone_surrogate_is_an_error():
    """ME14: what is not UTF-8 cannot be a key on a node."""
    with pytest.raises(KeyDerivationError, match="surrogate"):
        from_template("{payment_id}", "\ud800")


def test_message_id_is_held_to_the_limits():
    """ME14: message ids may be set by hand."""
    with pytest.raises(KeyDerivationError):
        compile_key("message_id", pay, "pay")(message(1).copy(message_id="x" * 1025))


# Names of records

awkward = st.text(alphabet=st.sampled_from("ab:%25AE3\n\ud800"), max_size=8)


def test_record_name_can_be_read():
    """A record is found by its actor and its message id."""
    assert record_name("charge", "6f1c") == "charge:6f1c"
    assert record_name("shop:charge", "order:7") == "shop%3Acharge:order:7"
    assert record_name(None, "order:7") == ":order:7"


@given(st.none() | awkward, awkward, st.none() | awkward, awkward)
@example(None, "a:b", "", "a:b")
@example("a", "b:c", "a:b", "c")
@example("a:", "b", "a%3A", "b")
def test_records_share_a_name_only_if_actor_and_key_are_equal(actor, key, other_actor, other_key):
    """ME8: equal keys of two actors, or of an actor and the namespace, never meet."""
    same = record_name(actor, key) == record_name(other_actor, other_key)
    assert same == ((actor, key) == (other_actor, other_key))


def test_actor_name_of_any_characters_is_encodable():
    """ME14: the actor's part of a name is always UTF-8."""
    assert record_name("\ud800\n", "k").encode() == b"%ED%A0%80%0A:k"


# Fingerprints


def fingerprint(choice, *args, **kwargs):
    return compile_fingerprint(choice, charge, "charge")(message(*args, **kwargs))


def test_fingerprint_is_short_and_plain():
    """It stands in every record."""
    print_ = fingerprint("all", 1)
    assert len(print_) == 22
    assert set(print_) <= set(string.ascii_letters + string.digits + "-_")


def test_fingerprint_of_an_identical_retry_is_equal():
    """ME12: the same arguments, spelled differently or decoded, are no mismatch."""
    sent = message((1, 2), y=None)
    derive = compile_fingerprint("all", charge, "charge")
    assert derive(sent) == derive(received(sent)) == derive(message(x=[1, 2]))


def test_fingerprint_tells_another_payload():
    """ME12: another amount under the same key is seen."""
    assert fingerprint("all", 5) != fingerprint("all", 6)


def test_fingerprint_compares_only_the_arguments_chosen():
    """ME12: an argument that was not chosen may differ."""
    assert fingerprint(["x"], 5, "a") == fingerprint(["x"], 5, "b") != fingerprint(["x"], 6, "a")
    assert fingerprint(["order_id"], 1, order_id=2) != fingerprint(["order_id"], 1, order_id=3)
    assert fingerprint([], 1) == fingerprint([], 2)


def test_fingerprint_of_a_function_compares_what_it_returns():
    """ME12: a function sees the actor's arguments."""
    assert fingerprint(lambda x, y: x // 10, 51, 1) == fingerprint(lambda x, y: x // 10, 52, 2)
    assert fingerprint(lambda x, y: x // 10, 51, 1) != fingerprint(lambda x, y: x // 10, 61, 1)


def test_fingerprint_can_be_switched_off():
    """ME12: None compares nothing, whatever the arguments are."""
    assert fingerprint(None, object()) == "-"


@pytest.mark.parametrize("choice", ["amount", ["payment_id", "amount"]], ids=["a text", "unknown name"])
def test_fingerprint_of_unknown_arguments_is_refused(choice):
    """MI4: a misspelt argument is an error at declaration."""
    with pytest.raises(OptionError, match="amount"):
        compile_fingerprint(choice, pay, "pay")


def test_fingerprint_of_what_json_cannot_represent_is_an_error():
    """ME4: no memory address enters a fingerprint."""
    with pytest.raises(KeyDerivationError, match="idempotency_fingerprint"):
        fingerprint("all", object())
