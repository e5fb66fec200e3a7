"""The virtual node against a real server: the same commands at the same time get the same replies."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from dramatiq_idem import claims, lookup, repair
from redlock import scripts
from redlock.local import LocalNodes
from redlock.scripts import Script
from tests.simulation.lua_runtime import ErrorReply
from tests.simulation.sim_nodes import EPOCH_MS, VirtualNode

LEASES = [getattr(scripts, name) for name in scripts.__all__ if isinstance(getattr(scripts, name), Script)]
RECORDS = [made for module in (claims, lookup, repair) for made in vars(module).values() if isinstance(made, Script)]
GUARD = "1.02"
_SAME_MS = 20
"""Milliseconds by which the ends of two keys may differ."""


class Pair:
    """A real and a virtual node that are asked the same things at the same time."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.now_ms = 0
        self.virtual = VirtualNode("n", lambda: (self.now_ms - EPOCH_MS) / 1000)
        self.virtual.started = 0.0
        self.meet()

    def meet(self) -> None:
        """Give the virtual node what the real one did not choose alike: who it is and since when."""
        info = self.client.info("everything")
        self.virtual.identity = info["master_replid"]
        self.virtual.started = time.time() - info["uptime_in_seconds"] - EPOCH_MS / 1000

    def ask(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        """Run a script on both; fail if they answer, or remember, something else."""
        words = [str(arg) for arg in args]
        with self.client.pipeline(transaction=True) as pipe:
            pipe.time().eval(script.text, len(keys), *keys, *words).time()
            before, real, after = pipe.execute(raise_on_error=False)
        real = _plain(real)
        earliest, latest = (seconds * 1000 + micros // 1000 for seconds, micros in (before, after))
        data, journal = dict(self.virtual.data), list(self.virtual.journal)
        for self.now_ms in [*range(earliest, latest + 1), earliest - 1]:
            self.virtual.data, self.virtual.journal = dict(data), list(journal)
            reply = self.virtual.run(script.name, script.text, keys, words)
            reply = f"ERROR {reply.text}" if isinstance(reply, ErrorReply) else reply
            if _same(_sorted(script, real), _sorted(script, reply)):
                return real
        pytest.fail(f"{script.name} {keys} {words}: the server answers {real!r}, the virtual node {reply!r}")

    def compare_keys(self) -> None:
        """Compare all keys at one moment, with the life that is left to them; but for those that are about to end."""
        keys = [*self.client.scan_iter()]
        with self.client.pipeline(transaction=True) as pipe:
            pipe.time()
            for key in keys:
                pipe.get(key).pttl(key)
            (seconds, micros), *found = pipe.execute()
        now = seconds * 1000 + micros // 1000
        entries = zip(keys, found[::2], found[1::2], strict=True)
        real = {key: (value, math.inf if left == -1 else left) for key, value, left in entries if value is not None}
        virtual = {
            key: (value, math.inf if expires is None else expires - now)
            for key, (value, expires) in self.virtual.data.items()
        }
        for key in {key for node in (real, virtual) for key, (_, left) in node.items() if left > _SAME_MS}:
            (value, left), (virtual_value, virtual_left) = real[key], virtual[key]
            assert _same(value, virtual_value), key
            assert left == virtual_left or abs(left - virtual_left) <= _SAME_MS, key


def _plain(reply: Any) -> Any:
    if isinstance(reply, redis.ResponseError):
        return f"ERROR {reply}"
    return [_plain(item) for item in reply] if isinstance(reply, list) else reply


def _sorted(script: Script, reply: Any) -> Any:
    """Return a reply with its records in order: SCAN has none."""
    if script is repair.SCAN and isinstance(reply, list):
        records = reply[3]
        return [*reply[:3], sorted(map(list, zip(records[::3], records[1::3], records[2::3], strict=True)))]
    return reply


def _same(real: Any, virtual: Any) -> bool:
    """Whether two replies are equal; milliseconds may differ by two, and errors by their words."""
    if isinstance(real, list) and isinstance(virtual, list):
        return len(real) == len(virtual) and all(map(_same, real, virtual))
    if isinstance(real, int) and isinstance(virtual, int):
        return abs(real - virtual) <= 2
    if isinstance(real, str) and isinstance(virtual, str):
        if real.startswith("ERROR ") and virtual.startswith("ERROR "):
            return True
        ours, theirs = real.replace("/", " ").split(" "), virtual.replace("/", " ").split(" ")
        return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))
    return bool(real == virtual)


def _same_word(real: str, virtual: str) -> bool:
    return real == virtual or (
        real.isdigit() and virtual.isdigit() and len(real) == len(virtual) == 13 and abs(int(real) - int(virtual)) <= 2
    )


@pytest.fixture
def node(local_nodes: Callable[..., LocalNodes]) -> LocalNodes:
    return local_nodes(1, persistence="always")


@pytest.fixture
def pair(node: LocalNodes) -> Iterator[Pair]:
    with redis.Redis.from_url(node.urls[0], decode_responses=True) as client:
        yield Pair(client)


class Story:
    """Random calls of all scripts, as sensible as a confused client's; what they answer feeds later calls."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._last: dict[str, Any] = {}

    def _pick(self, *choices: Any) -> Any:
        return self._rng.choice(choices)

    def next(self, now_ms: int) -> tuple[Script, list[str], list[Any]]:
        """Return a call."""
        token, ttl, guard = self._pick("a", "b", "c-d_e"), self._pick(5, 40, 900, 30_000), self._pick(GUARD, GUARD, "0")
        lock, fence = f"ns:lock:{self._pick('x', 'y')}", f"ns:fence:{self._pick('x', 'y')}"
        record = f"ns:record:{self._pick('k', 'l')}"
        refusal = self._last.get("refusal", [0, "new", 0, "", "0" * 40, now_ms])
        seen, identity, now = refusal[3:6]
        life, retention = self._pick(60, 86_400_000), self._pick(60, 90_000)
        longest = self._pick((1_000, 1_000), (30_000, 1_000), (30_000, 30_000))
        done = f'done {self._pick(0, 0, 1)} {self._pick(7, 1782579200000000)} {token} 0 0 - m%20{token} {{"r": 1}}'
        running = f"running {self._pick(0, 1)} 9 {token} {self._pick(0, 1)} {now_ms + 900} - -"
        calls: list[tuple[Script, list[str], list[Any]]] = [
            (scripts.ACQUIRE, [lock, "ns:marker", fence], [token, ttl, guard, life]),
            (scripts.ACQUIRE, [lock, "ns:marker", fence], [token, ttl, guard, life]),
            (scripts.EXTEND, [lock, "ns:marker"], [token, ttl, guard]),
            (scripts.HEAL, [lock, fence], [token, now_ms + self._pick(-50, 500), self._pick(0, 3, 2**52), life]),
            (scripts.FENCE, [lock, fence], [token, self._pick(1, 2**51), life]),
            (scripts.COUNTER, [lock, "ns:marker", fence], [token, guard, life]),
            (scripts.RELEASE, [lock], [token]),
            (scripts.UNDO, [lock], [token]),
            (scripts.MARKER, ["ns:marker"], [self._pick("ns:*", "other:*")]),
            (scripts.PLAIN_ACQUIRE, [lock], [token, ttl]),
            (scripts.PING, [], []),
            (
                scripts.ADMIT,
                ["ns:marker"],
                [
                    self._pick(seen, seen, seen, "other"),
                    self._pick(identity, identity, identity, "0" * 40),
                    now + self._pick(1_000, 1_000, 5),
                    *longest,
                    self._pick("records", "leases", "fresh"),
                    self._pick("now", "boot", "ever", "ever", "keep" if seen else "now"),
                    "1a2b",
                ],
            ),
            (claims.CLAIM, [record, "ns:marker"], [token, ttl, guard, retention, "f1 m%20id", self._pick(0, 0, 2)]),
            (claims.CLAIM, [record, "ns:marker"], [token, ttl, guard, retention, "- -", 0]),
            (claims.FENCE, [record], [token, self._pick(3, 2**52)]),
            (lookup.LOOK, [record, "ns:marker"], []),
            (lookup.FORGET, [record], [self._pick(1, 1, 2), retention, self._pick("", "force")]),
            (repair.SCAN, ["ns:marker"], [0, "ns:record:*", 100]),
            (repair.COPY, ["ns:marker", "ns:record:k", "ns:record:l"], [identity, done, life, running, retention]),
            (
                repair.ENTITLE,
                ["ns:marker"],
                [self._pick(identity, "0" * 40), (seen.split() or ["0", "0"])[1], self._pick("records", "fresh")],
            ),
            (claims.RENEW, [record], [token, ttl, retention]),
            (claims.COMPLETE, [record], [done, done.split()[1], retention]),
            (claims.ABANDON, [record], [token, self._pick("free", "failed"), retention, self._pick("", "it raised")]),
            (claims.UNDO, [record], [token]),
        ]
        known = {id(script) for script, *_ in calls}
        missing = [made.name for made in LEASES + RECORDS if id(made) not in known]
        assert not missing, f"scripts without a contract: {missing}"
        return self._rng.choice(calls)

    def heard(self, reply: Any) -> None:
        """Remember a refusal: admissions quote it."""
        if isinstance(reply, list) and reply[0] == -1:
            self._last["refusal"] = reply


@pytest.mark.parametrize("seed", range(3))
def test_virtual_node_answers_as_a_real_one(pair: Pair, seed: int) -> None:
    """Random calls of every script, with keys that expire on the way, get equal replies and leave equal keys."""
    rng = random.Random(seed)
    story = Story(rng)
    kinds: set[tuple[str, str]] = set()
    for step in range(400):
        script, keys, args = story.next(pair.now_ms)
        reply = pair.ask(script, keys, args)
        story.heard(reply)
        word = reply[1] if isinstance(reply, list) and len(reply) > 1 and reply[0] != 1 else ""
        kinds.add((script.name, str(reply[0] if isinstance(reply, list) else "error") + f" {word}".split(" ")[1]))
        if rng.random() < 0.05:
            time.sleep(rng.choice((0.006, 0.045)))
        if step % 100 == 99:
            pair.compare_keys()
        if rng.random() < 0.01:
            pair.client.flushall()
            pair.virtual.flush()
    print(sorted(kinds))
    assert len(kinds) > 20, sorted(kinds)


def test_restart_and_promotion_change_the_identity_as_they_do_here(node: LocalNodes, pair: Pair) -> None:
    """Kept data with another identity are refused on both; a promotion on a live connection is such a change."""
    acquire = (scripts.ACQUIRE, ["ns:lock:x", "ns:marker", "ns:fence:x"], ["a", 900, GUARD, 60_000])
    refusal = pair.ask(*acquire)
    pair.ask(scripts.ADMIT, ["ns:marker"], [*refusal[3:5], refusal[5] + 1_000, 1_000, 1_000, "records", "ever", "-"])
    assert pair.ask(*acquire)[0] == 1

    node[0].restart()
    pair.virtual.start_anew()
    first = pair.virtual.identity
    pair.meet()
    assert pair.ask(*acquire)[1] == "restarted"

    with redis.Redis.from_url(node.urls[0], decode_responses=True) as admin:
        sha = admin.script_load(scripts.MARKER.text)
        admin.replicaof("127.0.0.1", "1")
        pair.virtual.is_replica = True
        reply = pair.ask(scripts.RELEASE, ["ns:lock:x"], ["a"])
        assert reply.startswith("ERROR")
        assert "read only replica" in reply
        admin.replicaof("NO", "ONE")
        pair.virtual.is_replica = False
        before = pair.virtual.identity
        pair.virtual.new_identity()
        assert pair.virtual.identity not in (first, before)
        pair.meet()
        assert pair.virtual.identity != before
        assert admin.evalsha(sha, 1, "ns:marker", "ns:*")[2] == pair.virtual.identity, (
            "scripts and connections survive it"
        )
    assert pair.ask(*acquire)[1] == "restarted"


def test_scripts_are_unknown_until_their_text_was_sent(pair: Pair) -> None:
    """NOSCRIPT comes at the same moments: never sent, and after a restart."""
    call = [scripts.MARKER.sha, "1", "ns:marker", "ns:*"]
    with pytest.raises(redis.exceptions.NoScriptError):
        pair.client.evalsha(*call)
    assert pair.virtual.execute(["EVALSHA", *call]).text.startswith("NOSCRIPT")
    pair.client.eval(scripts.MARKER.text, 1, "ns:marker", "ns:*")
    pair.virtual.execute(["EVAL", scripts.MARKER.text, "1", "ns:marker", "ns:*"])
    assert pair.client.evalsha(*call)[0] == pair.virtual.execute(["EVALSHA", *call])[0] == 1
    pair.virtual.start_anew()
    assert pair.virtual.execute(["EVALSHA", *call]).text.startswith("NOSCRIPT")
