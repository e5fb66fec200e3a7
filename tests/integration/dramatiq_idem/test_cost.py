"""What a protected job costs the nodes: commands and memory."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
import redis

from dramatiq_idem import RedlockStore
from dramatiq_idem.claim import Claim, ClaimRequest
from dramatiq_idem.keys import record_name
from redlock import Redlock

SETUP = 12  # commands of a connection: HELLO, INFO, a script's text; each worker thread shares it


def calls(url):
    """Return how many commands clients have sent to a node; those inside of scripts are not counted."""
    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=5.0) as client:
        stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha", "evalsha_ro", "fcall"))


def test_undisturbed_job_costs_two_commands_per_node(workbench, shared):
    """MH8: a claim and a completion; nothing is asked twice, nothing is tidied up."""
    bench = workbench(shared.urls)
    job = bench.job()
    jobs = 300
    for number in range(jobs):
        job.send(number)
    before = [calls(url) for url in shared.urls]
    bench.start()
    bench.join()
    after = [calls(url) for url in shared.urls]
    assert bench.starts() == jobs
    assert len(bench.told("Completed")) == jobs
    for b, a in zip(before, after, strict=True):
        assert a - b <= 2 * jobs + SETUP
    print("script calls per node and job:", [round((a - b) / jobs, 3) for b, a in zip(before, after, strict=True)])


def test_undisturbed_job_costs_two_commands_of_any_kind(workbench, shared):
    """MH8: as one of the nodes sees them come, plain ones too."""
    bench = workbench(shared.urls)
    job = bench.job()
    bench.start()
    bench.result(job.send("warm"))
    bench.join()
    seen = []
    watcher = redis.Redis.from_url(shared.urls[0], decode_responses=True, socket_timeout=5.0)
    with watcher, watcher.monitor() as monitor:
        for number in range(50):
            job.send(number)
        bench.join()
        with redis.Redis.from_url(shared.urls[0]) as other:
            other.echo("over")
        for command in monitor.listen():
            if "over" in command["command"]:
                break
            if command["client_type"] != "lua":
                seen.append(command["command"].split()[0].upper())
    assert bench.starts() == 51
    assert 100 <= sum(name in ("EVAL", "EVALSHA") for name in seen) <= len(seen) <= 100 + SETUP, Counter(seen)


def test_skipped_duplicate_costs_one_command_per_node(workbench, shared):
    """MH8: it is refused by all, so nothing has to be taken back."""
    bench = workbench(shared.urls)
    job = bench.job()
    bench.start()
    messages = [job.send(number) for number in range(100)]
    bench.join()
    before = [calls(url) for url in shared.urls]
    for message in messages:
        bench.broker.enqueue(message.copy())
    bench.join()
    assert len(bench.told("Skipped")) == 100
    for b, url in zip(before, shared.urls, strict=True):
        assert calls(url) - b <= 100 + SETUP


@pytest.mark.parametrize("actor_name", ["job"])
def test_completed_record_is_small(trio_on_each_server, each_server, actor_name):
    """An id of 36 characters and no result: at most 200 bytes on Valkey, 260 on Redis."""
    redlock = Redlock(trio_on_each_server.urls, namespace="idem")
    redlock.bootstrap()
    redlock.close()
    store = RedlockStore(trio_on_each_server.urls)
    name = record_name(actor_name, str(uuid.uuid4()))
    claim = store.claim(ClaimRequest(name, "", "", 5_000, 86_400_000))
    assert isinstance(claim, Claim)
    assert store.complete(claim, "")
    store.close()
    with redis.Redis.from_url(trio_on_each_server.urls[0], socket_timeout=5.0) as client:
        used = client.memory_usage(f"idem:record:{name}")
    print("bytes of a completed record:", used)
    assert used <= (200 if "valkey" in each_server else 260)
