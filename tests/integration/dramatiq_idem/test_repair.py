"""Nodes that forget their records: what is repaired by itself, what waits, and who may speak for absence meanwhile."""

from __future__ import annotations

import threading
import time

import dramatiq.worker
import pytest
import redis

from dramatiq_idem import RedlockStore
from dramatiq_idem import delivery as deliveries
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.judgement import Completed, Unavailable
from redlock import Marker
from tests.integration.dramatiq_idem.conftest import bootstrap
from tests.tools.workbench import wait_until

pytestmark = pytest.mark.timeout(60)

MAX_TTL = 1.0
LEASE = 900


@pytest.fixture
def short_delays(monkeypatch):
    """Do not wait five seconds where the delay itself is not the subject."""
    monkeypatch.setattr(deliveries, "_FIRST_OUTAGE_MS", 200)
    monkeypatch.setattr(deliveries, "_LONGEST_OUTAGE_MS", 500)
    monkeypatch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.2)


@pytest.fixture
def nodes(nodes3):
    """Three voting nodes whose longest lease is a second."""
    return bootstrap(nodes3, MAX_TTL)


@pytest.fixture
def bench(workbench, nodes, short_delays):
    """A workbench on them."""
    return workbench(nodes.urls, max_ttl=MAX_TTL, lease=LEASE)


@pytest.fixture
def stores():
    """Make stores without a worker; they are closed at the end."""
    made = []

    def make(nodes, **options):
        events = []
        store = RedlockStore(nodes.urls, observer=events.append, **{"max_ttl": MAX_TTL} | options)
        store.events = events
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def request(name, lease_ms=LEASE):
    return ClaimRequest(f"job:{name}", "", "", lease_ms, 60_000)


def rights(node):
    """Return what a node's marker says it may speak for; "none" without one."""
    with redis.Redis.from_url(node.url, decode_responses=True, socket_timeout=5.0) as client:
        marker = Marker.parse(client.get("idem:marker") or "")
        identity = client.info("replication")["master_replid"]
    return marker.rights if marker and marker.identity == identity else "none"


def mark_fresh(nodes):
    """Make nodes look as in the middle of the giving of rights."""
    for node in nodes:
        with redis.Redis.from_url(node.url, decode_responses=True, socket_timeout=5.0) as client:
            client.set("idem:marker", client.get("idem:marker").replace(" records ", " fresh "))


def record_count(node):
    with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
        return sum(1 for _ in client.scan_iter("idem:record:*"))


def flush(node):
    with redis.Redis.from_url(node.url, socket_timeout=5.0) as client:
        client.flushall()


def wipe(node):
    node.restart(wipe=True)


def fill(store, count):
    """Complete so many keys."""
    for number in range(count):
        claim = store.claim(request(number))
        assert isinstance(claim, Claim), claim
        assert store.complete(claim, str(number)), number


def meet(store, *nodes):
    """Claim until these nodes, which have forgotten, are known: their connections may have to be opened first."""
    wait_until(lambda: store.claim(request(time.monotonic())) and {rights(node) for node in nodes} == {"leases"})


def told(store, name):
    return [event for event in store.events if type(event).__name__ == name]


# -- one after another


def test_nodes_forget_one_after_another_while_jobs_run(bench, nodes):
    """No completed key runs again: each node learns from the others before it may speak for absence."""
    job = bench.job(max_retries=0)
    bench.start()
    messages, over = [], threading.Event()

    def produce():
        while not over.wait(0.02):
            message = job.message(len(messages))
            bench.broker.enqueue(message)
            messages.append(message)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for round_, node in enumerate(nodes):
            wait_until(lambda: len(bench.told("Completed")) > 20)
            wipe(node)
            wait_until(lambda round_=round_: len(bench.told("NodeRepaired")) > round_, 20.0)
            assert rights(node) == "records"
            for message in messages[:20]:
                bench.broker.enqueue(message.copy())
    finally:
        over.set()
        producer.join()
    bench.join(30.0)
    for message in messages[:60]:
        bench.broker.enqueue(message.copy())
    bench.join(30.0)
    assert bench.starts() == len(messages)
    assert bench.log.most_at_once() == 1
    assert bench.dead_letters == 0
    assert {event.node for event in bench.told("NodeRepaired")} == set(bench.store._nodes.names)
    assert all(event.records > 0 for event in bench.told("NodeRepaired"))
    assert bench.told("RecordsForgotten") == []
    assert bench.told("DoubleRun") == []


@pytest.mark.parametrize("forget", [wipe, flush])
def test_forgetful_node_is_repaired_by_itself(stores, nodes, forget):
    """Once a claim has met it: after its wait it has the others' records, with what is left of their life."""
    store = stores(nodes)
    fill(store, 30)
    forget(nodes[1])
    meet(store, nodes[1])
    wait_until(lambda: store.claim(request(time.monotonic())) and rights(nodes[1]) == "records", 20.0)
    assert len(told(store, "NodeRepaired")) == 1
    with redis.Redis.from_url(nodes[1].url, decode_responses=True, socket_timeout=5.0) as client:
        for number in range(30):
            assert client.get(f"idem:record:job:{number}").startswith("done ")
            assert 0 < client.pttl(f"idem:record:job:{number}") < 60_000


def test_repair_does_not_undo_what_arrives_meanwhile(stores, nodes):
    """A copy only moves records up."""
    store = stores(nodes)
    fill(store, 5)
    running = store.claim(request("running"))
    wipe(nodes[0])
    store.claim(request("meets it"))
    assert store.complete(running, '"done"')
    wait_until(lambda: store.claim(request(time.monotonic())) and rights(nodes[0]) == "records", 20.0)
    for vote in store.look("job:running"):
        assert vote.reply[0].startswith("done ")
        assert vote.reply[0].endswith(' "done"')


def test_forgotten_keys_stay_forgotten(stores, nodes):
    """The tombstone's generation is higher than the completion's, also on the node that is repaired."""
    store = stores(nodes)
    fill(store, 3)
    store.forget("job:1", 60_000)
    wipe(nodes[2])
    store.claim(request("meets it"))
    wait_until(lambda: store.claim(request(time.monotonic())) and rights(nodes[2]) == "records", 20.0)
    assert {vote.reply[0].split()[0] for vote in store.look("job:1")} == {"forgotten"}
    claim = store.claim(request(1))
    assert claim.record.generation == 1
    assert isinstance(store.claim(request(2)), Completed)


# -- a node that forgets during its repair


@pytest.mark.parametrize("when", ["first page", "last page"])
@pytest.mark.parametrize("who", ["target", "source"])
@pytest.mark.parametrize("forget", [wipe, flush])
def test_node_that_forgets_during_its_repair_gets_no_rights(stores, nodes, when, who, forget):
    """Nor does one whose source forgot before all was read. The next repair begins anew."""
    store = stores(nodes)
    store._repairer.close()  # the test repairs
    fill(store, 450)
    wipe(nodes[0])
    meet(store, nodes[0])
    time.sleep(MAX_TTL + 0.2)
    happened = []

    def progress(_node, read):
        if not happened and (when == "first page" or read >= 450):
            happened.append(read)
            forget(nodes[0 if who == "target" else 1])

    is_repaired = store.repair(progress=progress)
    assert happened
    if (who, when) == ("source", "last page"):  # it had told all that it knew
        assert record_count(nodes[0]) >= 450
    else:
        assert not is_repaired
        assert rights(nodes[0]) != "records"
    if who == "target":
        meet(store, nodes[0])
        wait_until(store.repair, 15.0)
        assert rights(nodes[0]) == "records"
        assert record_count(nodes[0]) >= 450
    assert isinstance(store.claim(request(7)), Completed)


def test_repair_waits_for_the_leases_that_may_be_forgotten(stores, nodes):
    """Not before max_ttl has passed since its marker was written."""
    store = stores(nodes)
    store._repairer.close()
    fill(store, 3)
    wipe(nodes[0])
    meet(store, nodes[0])
    since = time.monotonic()
    assert store.repair() is False
    wait_until(store.repair)
    assert time.monotonic() - since > MAX_TTL * 0.9


def test_two_repair_at_once(stores, nodes):
    """One of them does it; neither breaks it."""
    first, second = stores(nodes), stores(nodes)
    for store in (first, second):
        store._repairer.close()
    fill(first, 450)
    wipe(nodes[0])
    meet(first, nodes[0])
    time.sleep(MAX_TTL + 0.2)
    threads = [threading.Thread(target=store.repair) for store in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rights(nodes[0]) == "records"
    assert len(told(first, "NodeRepaired")) + len(told(second, "NodeRepaired")) >= 1
    assert record_count(nodes[0]) >= 450
    assert first.repair()


# -- too many forget


def test_all_nodes_forget_at_once(bench, workbench, nodes):
    """Critical, said once; nobody knows more than they do, so work goes on after the wait, and may repeat what was."""
    with workbench(nodes.urls, max_ttl=MAX_TTL, lease=LEASE) as earlier:  # closed: it still may owe a node a completion
        done = earlier.job().message("before")
        earlier.start().broker.enqueue(done)
        earlier.join()
    job = bench.job()
    bench.start()
    for node in nodes:
        node.kill()
    for node in nodes:
        wipe(node)
    since = time.monotonic()
    fresh = bench.twice(job.message("after"))
    assert bench.result(fresh, 20.0) == 42
    assert time.monotonic() - since < 15.0
    bench.broker.enqueue(done.copy())
    bench.join()
    assert (bench.starts("after"), earlier.starts("before"), bench.starts("before")) == (1, 1, 1)
    assert bench.told("RecordsForgotten") or {event.rights for event in bench.told("Admitted")} == {"records"}
    assert {rights(node) for node in nodes} == {"records"}


def test_all_nodes_are_flushed_one_by_one(bench, nodes):
    """No two of them remember, but all answer: they start anew, and somebody is told."""
    job = bench.job()
    bench.start()
    bench.result(job.send("before"))
    bench.join()
    for node in nodes:
        flush(node)
        bench.store.claim(request(time.monotonic()))  # a marker without rights, before the next one forgets
    fresh = job.send("after")
    assert bench.result(fresh, 20.0) == 42
    wait_until(lambda: {rights(node) for node in nodes} == {"records"}, 20.0)
    assert bench.told("RecordsForgotten") or "records" in {event.rights for event in bench.told("Admitted")}


@pytest.mark.parametrize("given", [0, 1, 2], ids="{} may speak for the records already".format)
def test_giving_of_rights_that_broke_off_is_finished(stores, nodes, given):
    """All forgot and were marked fresh; whoever gave them their rights died before the last had them."""
    store = stores(nodes)
    mark_fresh(list(nodes)[given:])
    wait_until(lambda: isinstance(store.claim(request(time.monotonic())), Claim), 20.0)
    wait_until(lambda: {rights(node) for node in nodes} == {"records"}, 20.0)
    told = [event for event in store.events if type(event).__name__ == "RecordsForgotten"]
    assert len(told) == (given < 2)


def test_fresh_node_beside_none_that_remembers_is_not_believed(stores, nodes):
    """It may have been marked alone: then others may know more. One is away, so nobody can tell."""
    store = stores(nodes)
    mark_fresh(nodes)
    nodes[2].kill()
    assert not store.repair()
    assert [rights(node) for node in list(nodes)[:2]] == ["fresh", "fresh"]


def test_too_few_remember(stores, nodes):
    """Claims wait, and say why, until somebody accepts the loss; a completion that one node knows is still found."""
    store = stores(nodes)
    store._repairer.close()
    fill(store, 3)
    for node in nodes[:2]:
        wipe(node)
    meet(store, *nodes[:2])
    time.sleep(MAX_TTL + 0.3)
    outcome = store.claim(request("new"))
    assert isinstance(outcome, Unavailable)
    assert "has forgotten records" in " ".join(outcome.causes.values())
    assert store.repair() is False
    assert told(store, "RecordsForgotten") == []
    assert store.repair(accept_loss=True) is True
    (event,) = told(store, "RecordsForgotten")
    assert len(event.nodes) == 2
    assert isinstance(store.claim(request("new")), Claim)
    assert isinstance(store.claim(request(1)), Completed)


def test_forgetful_node_is_not_repaired_while_too_few_can_be_read(stores, nodes):
    """One that remembers is away: what only it and the forgetful one had may be missing on the third."""
    store = stores(nodes)
    store._repairer.close()
    fill(store, 3)
    wipe(nodes[0])
    meet(store, nodes[0])
    time.sleep(MAX_TTL + 0.2)
    nodes[1].kill()
    assert store.repair() is False
    assert rights(nodes[0]) == "leases"
    assert isinstance(store.claim(request("new")), Unavailable)


def test_single_node_that_forgot_starts_anew(workbench, local_nodes, short_delays):
    """N = 1: after its wait, and somebody is told."""
    nodes = bootstrap(local_nodes(1), MAX_TTL)
    bench = workbench(nodes.urls, max_ttl=MAX_TTL, lease=LEASE)
    job = bench.job()
    bench.start()
    bench.result(job.send("before"))
    bench.join()
    wipe(nodes[0])
    assert bench.result(job.send("after"), 20.0) == 42
    assert bench.told("RecordsForgotten") or bench.told("Admitted")


def test_five_nodes_of_which_two_forget_at_once(stores, local_nodes):
    """W = 3: three that remember are enough to repair the others, both at once."""
    nodes = bootstrap(local_nodes(5), MAX_TTL)
    store = stores(nodes)
    fill(store, 10)
    wipe(nodes[0])
    wipe(nodes[3])
    store.claim(request("meets them"))
    wait_until(lambda: store.claim(request(time.monotonic())) and rights(nodes[0]) == rights(nodes[3]) == "records", 20)
    for number in range(10):
        assert isinstance(store.claim(request(number)), Completed)
    assert len(told(store, "NodeRepaired")) == 2
    assert record_count(nodes[3]) >= 10


# -- nodes that forget nothing


def test_durable_nodes_serve_at_once_after_a_restart(stores, local_nodes):
    """The user's word: fsync on every write. No wait, no repair, nothing forgotten."""
    nodes = bootstrap(local_nodes(3, persistence="always"), 20.0)
    store = stores(nodes, max_ttl=20.0, durable_nodes=True)
    fill(store, 5)
    running = store.claim(request("running", 15_000))
    for node in nodes:
        node.restart()
    since = time.monotonic()
    wait_until(lambda: isinstance(store.claim(request(time.monotonic())), Claim), 10.0)
    assert time.monotonic() - since < 5.0
    assert isinstance(store.claim(request(2)), Completed)
    assert store.complete(running, "1").record.token == running.record.token
    assert told(store, "NodeRepaired") == told(store, "RecordsForgotten") == []
    assert {rights(node) for node in nodes} == {"records"}


def test_durable_node_that_comes_back_empty_is_not_believed(stores, local_nodes):
    """The word is about restarts; one without its marker has forgotten."""
    nodes = bootstrap(local_nodes(3, persistence="always"), MAX_TTL)
    store = stores(nodes, durable_nodes=True)
    store._repairer.close()
    fill(store, 5)
    wipe(nodes[0])
    meet(store, nodes[0])


def test_restarted_node_waits_without_that_word(stores, local_nodes):
    """Though it has its data: nobody can see whether it is all."""
    nodes = bootstrap(local_nodes(3, persistence="always"), MAX_TTL)
    store = stores(nodes)
    store._repairer.close()
    fill(store, 5)
    nodes[0].restart()
    wait_until(lambda: store.claim(request(time.monotonic())) and rights(nodes[0]) == "leases")
    assert isinstance(store.claim(request(2)), Completed)
