"""Explicit-state model checker of the fencing token: every interleaving of a few clients on a few nodes.

Each grant increments a per-resource counter on its node; a missing counter starts from the node's clock in coarse whole
seconds. The token is the largest counter among a majority of grants. If a majority returned exactly that value the
acquisition is finished; else the others are raised to it (where the lock is still owned and the counter is not larger)
until a majority confirmed.

Nothing is assumed of time beyond the clock seconds: a lock may vanish from a node at any moment, a client may stall
anywhere for ever, a request may never arrive, a reply may be lost after its command ran. Node clocks run alike and
differ by constant offsets. A node that forgets loses lock and counter and does not vote for the guard's wait.

Checked on every finished acquisition:
    U  no two finished acquisitions share a token;
    R  a token is larger than every token that was returned before its acquisition started.

The search is breadth first, so that a violation is reported by one of its shortest paths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

NOBODY = -1
MISSING = 0
NOT_HEARD = 0
SEED_STEP = 1000  # stands for 2**20: more than a run can increment within one second, and short enough to read
FIRST_SECOND = 5  # any positive number: a fresh counter must not look like a missing one

# Where a client is in its only acquisition. Plain integers: states are hashed millions of times, an Enum hashes slowly.
IDLE, ASKING, RAISING, FINISHED = range(4)


@dataclass(frozen=True)
class Design:
    """One configuration to check: the rules of the token, and how much may go wrong.

    Args:
        nodes: Independent nodes; a majority of them is a quorum.
        clients: Acquisitions, each started once, in any overlap.
        ticks: How often time may advance, anywhere between two steps.
        ticks_per_second: Resolution of time; 2 lets clocks differ by half a second.
        offsets: Ticks by which each node's clock is ahead; all equal when empty.
        amnesias: How many times some node may forget everything.
        guard_wait: Ticks during which a node that forgot does not vote.
        counter_life: Ticks after its last change when a counter may expire; None keeps it.
        lost_replies: Whether a command may run while its reply is lost.
        seeded: Whether a missing counter starts from the clock rather than from zero.
        write_back: Whether the token is confirmed by a majority before it is returned.
        owner_check: Whether a counter is raised only where the lock is still owned.
        refuse_larger: Whether a node whose counter is already larger refuses to confirm.
        counter_outlives_lock: Whether a counter stays when its lock is gone.
    """

    nodes: int = 3
    clients: int = 2
    ticks: int = 0
    ticks_per_second: int = 1
    offsets: tuple[int, ...] = ()
    amnesias: int = 0
    guard_wait: int = 0
    counter_life: int | None = None
    lost_replies: bool = False
    seeded: bool = True
    write_back: bool = True
    owner_check: bool = True
    refuse_larger: bool = True
    counter_outlives_lock: bool = True

    @property
    def quorum(self) -> int:
        """Return the smallest majority of the nodes."""
        return self.nodes // 2 + 1

    def first_counter(self, node: int, tick: int) -> int:
        """Return the value that a missing counter starts with when `node` grants at `tick`."""
        if not self.seeded:
            return MISSING + 1
        offset = self.offsets[node] if self.offsets else 0
        return (FIRST_SECOND + (tick + offset) // self.ticks_per_second) * SEED_STEP


class Node(NamedTuple):
    """What one node stores; times in ticks, zero once they are past so that equal situations are equal states."""

    holder: int = NOBODY
    counter: int = MISSING
    expires: int = 0
    votes_from: int = 0


class Client(NamedTuple):
    """One acquisition: what it heard and what it decided; `asked` and `confirmed` are bit sets of nodes."""

    phase: int
    floor: int  # largest token returned before this acquisition started
    replies: tuple[int, ...]
    token: int = 0
    asked: int = 0
    confirmed: int = 0


class State(NamedTuple):
    """The whole system between two steps."""

    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]
    amnesias: int
    tick: int


class Action(NamedTuple):
    """One step of the system; `client` and `node` are -1 where they mean nothing."""

    what: str
    client: int = -1
    node: int = -1
    value: int = 0

    def __str__(self) -> str:
        who = f"client {self.client} " if self.client >= 0 else ""
        where = f" at node {self.node}" if self.node >= 0 else ""
        value = f" {self.value}" if self.value else ""
        return f"{who}{self.what}{value}{where}"


Successor = tuple[Action, State]


@dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
        outcome: "exhausted", "violation" or "limit" (gave up after that many states).
        states: Distinct states whose successors were all looked at.
        violation: The broken promise in words, empty if none.
        path: The steps that lead to it.
    """

    outcome: str
    states: int
    violation: str = ""
    path: tuple[Action, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.outcome} after {self.states} states {self.violation}".rstrip()]
        return "\n".join(lines + [f"  {number:2}. {action}" for number, action in enumerate(self.path, 1)])


def check(design: Design, limit: int = 2_000_000) -> Result:
    """Search every state that `design` can reach, breadth first, until a promise is broken.

    Args:
        design: The configuration.
        limit: Number of states after which the search gives up.
    """
    start = _initial(design)
    reached_by: dict[State, tuple[State, Action] | None] = {start: None}
    waiting = deque([start])
    states = 0
    while waiting:
        if states == limit:
            return Result("limit", states)
        state = waiting.popleft()
        states += 1
        for action, following in _successors(design, state):
            if following in reached_by:
                continue
            reached_by[following] = (state, action)
            if following.clients != state.clients and (violation := _violation(state, following)):
                return Result("violation", states, violation, _path(reached_by, following))
            waiting.append(following)
    return Result("exhausted", states)


def _initial(design: Design) -> State:
    client = Client(IDLE, 0, (NOT_HEARD,) * design.nodes)
    return State((Node(),) * design.nodes, (client,) * design.clients, design.amnesias, 0)


def _path(reached_by: dict[State, tuple[State, Action] | None], state: State) -> tuple[Action, ...]:
    """Return the actions from the initial state to `state`."""
    path = []
    while (step := reached_by[state]) is not None:
        state, action = step
        path.append(action)
    return tuple(reversed(path))


def _violation(before: State, after: State) -> str:
    """Say which promise the acquisition that finished in this step broke, if one finished and broke one."""
    for index, client in enumerate(after.clients):
        if client.phase != FINISHED or before.clients[index].phase == FINISHED:
            continue
        if client.token <= client.floor:
            return f"R: client {index} got {client.token}, but {client.floor} was returned before it started"
        for other, rival in enumerate(after.clients):
            if other != index and rival.phase == FINISHED and rival.token == client.token:
                return f"U: clients {other} and {index} both finished with {client.token}"
    return ""


def _successors(design: Design, state: State) -> Iterator[Successor]:
    """Yield every step that can follow `state`."""
    for index, client in enumerate(state.clients):
        if client.phase == IDLE:
            yield from _start(state, index)
        elif client.phase == ASKING:
            yield from _ask(design, state, index)
            yield from _decide(design, state, index)
        elif client.phase == RAISING:
            yield from _raise(design, state, index)
    for index in range(design.nodes):
        yield from _lose(design, state, index)
    if state.tick < design.ticks:
        yield _tick(state)


def _start(state: State, index: int) -> Iterator[Successor]:
    """Start an acquisition; clients are alike, so they start in the order of their numbers."""
    if index and state.clients[index - 1].phase == IDLE:
        return
    floor = max((rival.token for rival in state.clients if rival.phase == FINISHED), default=0)
    client = state.clients[index]
    yield Action("starts", index), _with_client(state, index, client._replace(phase=ASKING, floor=floor))


def _ask(design: Design, state: State, index: int) -> Iterator[Successor]:
    """Run the acquire script on one more node; a refusal changes nothing, as if it had never arrived."""
    client = state.clients[index]
    for position, node in enumerate(state.nodes):
        if client.asked >> position & 1 or node.holder != NOBODY or state.tick < node.votes_from:
            continue
        fresh = node.counter == MISSING
        counter = design.first_counter(position, state.tick) if fresh else node.counter + 1
        granted = _with_node(state, position, Node(index, counter, _expiry(design, state)))
        asked = client._replace(asked=client.asked | 1 << position)
        heard = asked._replace(replies=_put(client.replies, position, counter))
        yield Action("granted", index, position, counter), _with_client(granted, index, heard)
        if design.lost_replies:
            yield Action("granted (reply lost)", index, position, counter), _with_client(granted, index, asked)


def _decide(design: Design, state: State, index: int) -> Iterator[Successor]:
    """Choose the token once a majority granted: finished if a majority already agrees, else raise the others."""
    client = state.clients[index]
    if sum(reply != NOT_HEARD for reply in client.replies) < design.quorum:
        return
    token = max(client.replies)
    agreeing = client.replies.count(token)
    if agreeing >= design.quorum or not design.write_back:
        yield Action("finishes with", index, value=token), _finished(state, index, token)
        return
    confirmed = sum(1 << position for position, reply in enumerate(client.replies) if reply == token)
    raising = client._replace(phase=RAISING, token=token, confirmed=confirmed)
    yield Action("chooses", index, value=token), _with_client(state, index, raising)


def _raise(design: Design, state: State, index: int) -> Iterator[Successor]:
    """Raise the counter of one more node to the token; finished once a majority confirmed."""
    client = state.clients[index]
    for position, node in enumerate(state.nodes):
        if client.confirmed >> position & 1 or (design.owner_check and node.holder != index):
            continue
        if design.refuse_larger and node.counter > client.token:
            continue
        counter = max(node.counter, client.token)
        raised = _with_node(state, position, node._replace(counter=counter, expires=_expiry(design, state)))
        confirmed = client.confirmed | 1 << position
        if confirmed.bit_count() >= design.quorum:
            after = _finished(raised, index, client.token)
        else:
            after = _with_client(raised, index, client._replace(confirmed=confirmed))
        yield Action("raises and counts", index, position, client.token), after
        if design.lost_replies:
            yield Action("raises (reply lost)", index, position, client.token), raised


def _lose(design: Design, state: State, index: int) -> Iterator[Successor]:
    """Let one node lose its lock (released or expired), its old counter, or everything."""
    node = state.nodes[index]
    if node.holder != NOBODY:
        kept = node.counter if design.counter_outlives_lock else MISSING
        yield Action("lock is gone", node=index), _with_node(state, index, node._replace(holder=NOBODY, counter=kept))
    if node.counter == MISSING and node.holder == NOBODY:
        return
    if design.counter_life is not None and node.counter and state.tick >= node.expires:
        expired = node._replace(counter=MISSING, expires=0)
        yield Action("counter expires", node=index), _with_node(state, index, expired)
    if state.amnesias:
        forgot = Node(votes_from=state.tick + design.guard_wait if design.guard_wait else 0)
        after = _with_node(state, index, forgot)._replace(amnesias=state.amnesias - 1)
        yield Action("forgets everything", node=index), after


def _tick(state: State) -> Successor:
    """Advance time by one tick and drop the deadlines that are now past."""
    tick = state.tick + 1
    nodes = tuple(
        node._replace(
            expires=node.expires if node.expires > tick else 0,
            votes_from=node.votes_from if node.votes_from > tick else 0,
        )
        for node in state.nodes
    )
    return Action("time advances"), state._replace(nodes=nodes, tick=tick)


def _expiry(design: Design, state: State) -> int:
    """Return when a counter that changes now may expire; zero where counters are kept."""
    return 0 if design.counter_life is None else state.tick + design.counter_life


def _finished(state: State, index: int, token: int) -> State:
    """Return `state` with the acquisition over; what it heard no longer matters and is dropped."""
    client = state.clients[index]
    done = Client(FINISHED, client.floor, (NOT_HEARD,) * len(client.replies), token)
    return _with_client(state, index, done)


def _with_client(state: State, index: int, client: Client) -> State:
    return State(state.nodes, _put(state.clients, index, client), state.amnesias, state.tick)


def _with_node(state: State, index: int, node: Node) -> State:
    return State(_put(state.nodes, index, node), state.clients, state.amnesias, state.tick)


def _put(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
