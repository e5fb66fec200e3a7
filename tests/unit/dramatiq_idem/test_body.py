"""The wrapper around an actor's function: the body is replaced or interrupted there, and nowhere else."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from queue import SimpleQueue

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from dramatiq_idem import Idempotency, MemoryStore
from dramatiq_idem.body import Interrupter, LeaseLostInterrupt, expect_body, wrap


@pytest.fixture
def broker():
    """A broker without any middleware."""
    return StubBroker(middleware=[])


@pytest.fixture(autouse=True)
def nothing_expected():
    """Each test starts, and leaves the next one, without an expected body."""
    expect_body("add", None)
    yield
    expect_body("add", None)


def added(broker, **options):
    """Declare an actor and wrap it."""

    def add(a, b=1):
        """Add two numbers."""
        return a + b

    actor = dramatiq.actor(add, broker=broker, **options)
    wrap(actor)
    return actor


def instead(function, args, kwargs):
    return ("instead", args, kwargs)


def test_direct_calls_are_untouched(broker):
    """H32: arguments, result, name and documentation are the function's own."""
    add = added(broker)
    assert (add(1), add(1, b=2), add.fn(3)) == (2, 3, 4)
    assert add.fn.__name__ == "add"
    assert add.fn.__doc__ == "Add two numbers."
    with pytest.raises(TypeError):
        add(1, 2, 3)


def test_expected_call_goes_through_the_runner_once(broker):
    """The delivery's own call; what the body calls afterwards is an ordinary call."""
    add = added(broker)
    expect_body("add", instead)
    assert add(1, b=5) == ("instead", (1,), {"b": 5})
    assert add(1, b=5) == 6


def test_runner_is_taken_back(broker):
    """None ends the expectation: of a delivery that did not run."""
    add = added(broker)
    expect_body("add", instead)
    expect_body("add", None)
    assert add(1) == 2


def test_runner_of_another_actor_is_not_used(broker):
    """A body that is called by other code in between does not use up what was meant for its actor."""
    add = added(broker)
    expect_body("other", instead)
    assert add(1) == 2
    expect_body("add", instead)
    assert add(1)[0] == "instead"


def test_recursion_goes_through_the_runner_once(broker):
    """An actor that calls itself directly runs its inner calls like any function."""
    seen = []

    def runner(function, args, kwargs):
        seen.append(args)
        return function(*args, **kwargs)

    def down(n):
        return [n, *down_actor(n - 1)] if n else [0]

    down_actor = dramatiq.actor(down, broker=broker, actor_name="add")
    wrap(down_actor)
    expect_body("add", runner)
    assert down_actor(4) == [4, 3, 2, 1, 0]
    assert seen == [(4,)]


def test_runner_that_raises_is_used_up(broker):
    """The next call in this thread is an ordinary one."""
    add = added(broker)

    def runner(function, args, kwargs):
        raise ValueError("from the runner")

    expect_body("add", runner)
    with pytest.raises(ValueError, match="from the runner"):
        add(1)
    assert add(1) == 2


def test_actor_is_wrapped_once(broker):
    """However often it is declared, and by however many middleware."""
    add = added(broker)
    once = add.fn
    wrap(add)
    wrap(add)
    assert add.fn is once
    assert once.__wrapped__.__name__ == "add"


def test_function_shared_by_two_actors_gets_a_wrapper_each(broker):
    """The first actor's wrapper must not stand for the second one."""

    def work(x):
        return x

    first = dramatiq.actor(work, broker=broker, actor_name="first")
    second = dramatiq.actor(work, broker=broker, actor_name="second")
    wrap(first)
    wrap(second)
    expect_body("second", instead)
    assert first(1) == 1
    assert second(1)[0] == "instead"


def test_actor_made_of_a_wrapped_function_is_run_under_its_own_name(broker):
    """`actor.fn` of one actor declared as another: both names work, and each runner is used for its own."""
    first = added(broker)
    second = dramatiq.actor(first.fn, broker=broker, actor_name="second")
    wrap(second)
    expect_body("second", instead)
    assert second(1)[0] == "instead"


def test_runner_belongs_to_one_thread(broker):
    """Another thread that calls the actor meanwhile calls a function."""
    add = added(broker)
    found = []
    expect_body("add", instead)
    thread = threading.Thread(target=lambda: found.append(add(1)))
    thread.start()
    thread.join()
    assert found == [2]
    assert add(1)[0] == "instead"


def test_generic_actor_is_wrapped(monkeypatch):
    """Its function is an instance; its `perform` is reached through the wrapper."""
    broker = StubBroker()
    Idempotency(store=MemoryStore()).install(broker)
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)

    class Work(dramatiq.GenericActor):
        def perform(self, x):
            return x + 1

    actor = broker.get_actor(Work.actor_name)
    expect_body(actor.actor_name, instead)
    assert actor(1)[0] == "instead"
    assert actor(1) == 2


# -- interrupts


def test_interrupt_ends_the_body():
    """And the next one of the thread is not concerned."""
    interrupter = Interrupter()
    entered = threading.Event()
    outcome = []

    def run():
        try:
            with interrupter:
                entered.set()
                until = time.monotonic() + 5.0
                while time.monotonic() < until:
                    time.sleep(0.001)
        except LeaseLostInterrupt:
            outcome.append("interrupted")
        time.sleep(0.05)
        outcome.append("alive")

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait(5.0)
    interrupter.fire()
    thread.join(5.0)
    assert outcome == ["interrupted", "alive"]


def test_interrupt_behind_the_body_hits_nothing():
    """Nobody is there whom it is meant for."""
    interrupter = Interrupter()
    with interrupter:
        sum(range(1000))
    interrupter.fire()
    for _ in range(1000):
        sum(range(100))


def test_interrupt_before_the_body_keeps_it_from_running():
    """The lease was lost while another hook took its time."""
    interrupter = Interrupter()
    interrupter.fire()
    ran = []
    with pytest.raises(LeaseLostInterrupt), interrupter:
        ran.append(1)
    assert not ran


def test_body_that_raises_is_disarmed():
    """H12: the window behind the raise is what killed worker threads."""
    interrupter = Interrupter()
    with pytest.raises(ValueError, match="body"), interrupter:
        raise ValueError("body")
    interrupter.fire()
    for _ in range(1000):
        sum(range(100))


def test_interrupt_that_has_not_landed_is_taken_back():
    """Fired by the body's own thread just before the end, it never arrives behind the end."""
    for _ in range(300):
        interrupter = Interrupter()
        try:
            with interrupter:
                interrupter.fire()
        except LeaseLostInterrupt:
            pass
        sum(range(50))


UNDER_A_TRACER = """
import sys
from dramatiq_idem.body import Interrupter, LeaseLostInterrupt

for is_landed in (True, False):
    interrupter = Interrupter()
    try:
        with interrupter:
            interrupter.fire()
            is_landed and sum(map(len, ["ab"] * 1000))
    except LeaseLostInterrupt:
        pass
sys.settrace(lambda *_: None)
print((lambda: "goes on")())
"""


def test_interrupt_leaves_an_interpreter_that_works_under_a_tracer():
    """A debugger's, or coverage's: CPython 3.11 hung at the next call once an interrupt had been cleared."""
    command = [sys.executable, "-c", UNDER_A_TRACER]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=15.0, check=False)
    assert ended.stdout == "goes on\n", ended.stderr


@pytest.fixture
def quick_switches():
    """Let threads take turns so often that a shot meets every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_01)
    yield
    sys.setswitchinterval(before)


def shoot(targets, chance):
    """Fire once at each target, after a random moment."""
    while target := targets.get():
        spin(chance.randrange(60))
        target.fire()


def spin(turns):
    for _ in range(turns):
        sum(range(20))


def interrupted_body(interrupter, chance):
    """Run a body that is shot at; return how it ended."""
    try:
        with interrupter:
            spin(chance.randrange(300))
            if chance.random() < 0.3:
                raise ValueError
    except ValueError:
        return "raised"
    except LeaseLostInterrupt:
        return "interrupted"
    return "returned"


@pytest.fixture
def only_own_rubbish():
    """Collect nothing meanwhile: an interrupt that hits the weak references of other tests' objects is lost there."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("quick_switches", "only_own_rubbish")
def test_interrupt_never_lands_behind_the_body():
    """H12 under load: bodies of random length, one shot at each at a random moment, some of them raise."""
    deaths, outcomes = [], Counter()
    stop = time.monotonic() + 3.0

    def work(seed):
        chance, targets = random.Random(seed), SimpleQueue()
        threading.Thread(target=shoot, args=(targets, random.Random(-seed)), daemon=True).start()
        try:
            while time.monotonic() < stop:
                interrupter = Interrupter()
                targets.put(interrupter)
                outcomes[interrupted_body(interrupter, chance)] += 1
                spin(50)  # where Dramatiq itself would be hit
        except BaseException:  # noqa: BLE001 - the very thing that must not be
            deaths.append(traceback.format_exc())
        targets.put(None)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert deaths == []
    assert min(outcomes[each] for each in ("returned", "raised", "interrupted")) > 20, outcomes


def test_coroutine_actor_can_be_replaced(broker):
    """Its function is Dramatiq's bridge to the event loop, and is wrapped like any other."""

    async def work(x):
        await asyncio.sleep(0)
        return x

    actor = dramatiq.actor(work, broker=broker)
    wrap(actor)
    expect_body("work", instead)
    assert actor(1) == ("instead", (1,), {})
