"""From journals to a timeline, and from there to what is drawn; values in, values out."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from dramatiq_idem.demo.audit import Report
from dramatiq_idem.demo.figure import figure, per_bar
from dramatiq_idem.demo.history import Deed, History, What
from dramatiq_idem.demo.journal import BOOTED, CHARGED, COMPLETED, RETURNED, STARTED, Entry, Journal, JournalReader
from dramatiq_idem.demo.page import page
from dramatiq_idem.demo.reconstruction import reconstruct
from dramatiq_idem.demo.timeline import Span
from dramatiq_idem.events import Completed, Deferred
from redlock import Admitted, NodeDown

NODES = ("a:1/0", "b:1/0", "c:1/0")
STARTS = (Deed(What.START_WORKER, 0, 101.0, "", 11), Deed(What.START_WORKER, 1, 101.0, "", 22))
KILL = Deed(What.KILL_WORKER, 0, 105.0, "killed", 11)
AGAIN = Deed(What.START_WORKER, 0, 106.0, "again", 33)


def lines(*rows):
    """Entries from "kind payment" with a time, a thread and a message."""
    return [Entry(*what.split(), at, thread, note) for at, thread, what, note in rows]


def history(deeds=STARTS, last=COMPLETED, **entries):
    by_group = {int(group.removeprefix("of_")): of_group for group, of_group in entries.items()}
    return History(100.0, 120.0, NODES, deeds, by_group, last)


def whole_run(payment, start, thread=7, kind="claimed", message="m1"):
    times = {kind: 0.0, STARTED: 0.1, CHARGED: 0.2, RETURNED: 0.3, COMPLETED: 0.4}
    return lines(*((start + after, thread, f"{step} {payment}", message) for step, after in times.items()))


def test_a_run_lasts_from_the_bodys_start_to_its_completion():
    timeline = reconstruct(history(of_11=whole_run("p1", 102.0) + whole_run("p2", 103.0)))
    one, two = timeline.runs
    assert (one.payment, one.message_id, one.worker, one.thread, one.fate) == ("p1", "m1", 0, 0, "completed")
    assert (one.start, one.end) == (102.1, 102.4)
    assert one.times[CHARGED] == 102.2
    assert (two.payment, two.start, two.end) == ("p2", 103.1, 103.4)


def test_threads_are_numbered_as_they_come_and_kept_apart():
    mixed = sorted(whole_run("p1", 102.0, thread=70) + whole_run("p2", 102.05, thread=60), key=lambda entry: entry.at)
    runs = reconstruct(history(of_11=mixed)).runs
    assert [(run.payment, run.thread, run.fate) for run in runs] == [("p1", 0, "completed"), ("p2", 1, "completed")]


@pytest.mark.parametrize("steps", [1, 2, 3, 4], ids=["claimed", "started", "charged", "returned"])
def test_a_run_killed_in_the_middle_ends_at_the_kill(steps):
    (run,) = reconstruct(history((*STARTS, KILL), of_11=whole_run("p1", 104.0)[:steps])).runs
    assert (run.fate, run.end) == ("killed", 105.0)
    assert run.has_body is (steps > 1)
    assert run.start == (104.1 if run.has_body else 104.0)


def test_only_what_was_open_is_killed():
    entries = whole_run("p1", 102.0) + whole_run("p2", 104.0)[:2] + whole_run("p3", 104.0, thread=8)
    runs = reconstruct(history((*STARTS, KILL), of_11=entries, of_22=whole_run("p4", 104.0)[:2])).runs
    assert {run.payment: (run.fate, run.end) for run in runs} == {
        "p1": ("completed", 102.4),
        "p2": ("killed", 105.0),
        "p3": ("completed", 104.4),
        "p4": ("unfinished", 120.0),
    }


def test_a_takeover_is_linked_to_the_run_that_was_cut_off():
    taken = whole_run("p1", 109.0, kind="takeover")
    runs = reconstruct(
        history((*STARTS, KILL, AGAIN), of_11=whole_run("p1", 104.0)[:2], of_22=whole_run("p2", 104.0), of_33=taken)
    ).runs
    before, takeover, other = sorted(runs, key=lambda run: (run.payment, run.start))
    assert takeover.is_takeover
    assert takeover.predecessor is before
    assert before.sequel == ("takeover", 109.1)
    assert before.fate == "killed"
    assert other.predecessor is other.sequel is None


def test_a_takeover_without_a_written_predecessor_stands_alone():
    (run,) = reconstruct(history(of_22=whole_run("p1", 109.0, kind="takeover"))).runs
    assert run.is_takeover
    assert run.predecessor is None


def test_a_killed_run_whose_redelivery_is_skipped_was_recorded():
    skipped = lines((103.0, 7, "skipped p1", "m0"), (107.0, 7, "skipped p1", "m1"), (108.0, 7, "skipped p1", "m1"))
    (run,) = reconstruct(history((*STARTS, KILL), of_11=whole_run("p1", 104.0)[:4], of_22=skipped)).runs
    assert run.sequel == ("skipped", 107.0)


def test_a_run_that_raised_ends_with_its_claim():
    entries = [*whole_run("p1", 102.0)[:2], *lines((102.3, 7, "givenup p1", "m1")), *whole_run("p1", 103.0)]
    first, second = reconstruct(history(of_11=entries)).runs
    assert (first.fate, first.end) == ("raised", 102.3)
    assert first.sequel is None, "only for what was killed"
    assert second.fate == "completed"


def test_without_the_middleware_the_return_is_the_end():
    entries = [line for start in (102.0, 103.0) for line in whole_run("p1", start)[1:4]]
    timeline = reconstruct(history(last=RETURNED, of_11=entries))
    assert [(run.start, run.end, run.fate) for run in timeline.runs] == [
        (102.1, 102.3, "completed"),
        (103.1, 103.3, "completed"),
    ]


@pytest.mark.parametrize(("start", "sequel"), [(107.0, ("again", 107.1)), (104.5, None)], ids=["later", "meanwhile"])
def test_without_the_middleware_a_killed_run_is_run_again(start, sequel):
    killed, other = whole_run("p1", 104.0)[1:2], whole_run("p1", start)[1:4]
    run, _ = reconstruct(history((*STARTS, KILL), last=RETURNED, of_11=killed, of_22=other)).runs
    assert (run.fate, run.sequel) == ("killed", sequel)


def test_marks_are_what_was_not_run_and_what_is_rare():
    rows = [(102.0, 7, "skipped p1", "m1"), (102.1, 7, "deferred-busy p2", "m2"), (102.2, 99, "leaselost -", "-")]
    marks = reconstruct(
        history(of_22=lines((101.5, 1, f"{BOOTED} -", "-"), *rows, (103.0, 7, "nodeup a:1/0", "-")))
    ).marks
    assert [(mark.kind, mark.worker, mark.thread, mark.payment) for mark in marks] == [
        ("skipped", 1, 0, "p1"),
        ("deferred-busy", 1, 0, "p2"),
        ("leaselost", 1, None, "-"),
    ]


def test_lives_begin_with_the_start_and_end_with_the_kill():
    booted = lines((101.5, 1, f"{BOOTED} -", "-"))
    lives = reconstruct(history((*STARTS, KILL, AGAIN), of_11=booted)).lives
    assert [(life.worker, life.began, life.booted, life.ended, life.is_killed) for life in lives] == [
        (0, 101.0, 101.5, 105.0, True),
        (1, 101.0, 120.0, 120.0, False),
        (0, 106.0, 120.0, 120.0, False),
    ]


def test_a_node_is_down_from_its_kill_and_waits_until_it_votes():
    deeds = (Deed(What.KILL_NODE, 1, 104.0, ""), Deed(What.RESTART_NODE, 1, 110.0, ""))
    admitted = lines(
        (101.0, 1, "admitted b:1/0", "0"), (110.5, 1, "admitted a:1/0", "1"), (111.0, 1, "admitted b:1/0", "3250")
    )
    spans = reconstruct(history((*STARTS, *deeds), of_11=admitted)).spans
    assert [span for span in spans if span.node == 1] == [
        Span(1, "up", 100.0, 104.0),
        Span(1, "down", 104.0, 110.0),
        Span(1, "waiting", 110.0, 114.25),
        Span(1, "up", 114.25, 120.0),
    ]
    assert [span for span in spans if span.node != 1] == [Span(0, "up", 100.0, 120.0), Span(2, "up", 100.0, 120.0)]


def test_a_node_that_never_comes_back_is_down_to_the_end():
    spans = reconstruct(history((*STARTS, Deed(What.KILL_NODE, 0, 104.0, "")))).spans
    assert spans[:2] == [Span(0, "up", 100.0, 104.0), Span(0, "down", 104.0, 120.0)]


def test_what_a_worker_writes_is_read_back_with_time_and_thread(tmp_path):
    journal = Journal(tmp_path)
    journal.write(STARTED, "pay_1", "m1")
    journal.observe(Completed("job:payment:pay_1", "charge", "m1", 0.1))
    journal.observe(Deferred("job:payment:pay_2", "charge", "m2", "busy", 5, "somebody"))
    journal.observe(Admitted("a:1/0", "restarted", "leases", 2500))
    journal.observe(NodeDown("a:1/0", "with some spaces", 0.5))
    ((_, entries),) = JournalReader(tmp_path).entries().items()
    assert [(entry.kind, entry.subject, entry.note) for entry in entries] == [
        (STARTED, "pay_1", "m1"),
        (COMPLETED, "pay_1", "m1"),
        ("deferred-busy", "pay_2", "m2"),
        ("admitted", "a:1/0", "2500"),
        ("nodedown", "a:1/0", "-"),
    ]
    assert len({entry.thread for entry in entries}) == 1
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)


REPORT = Report(
    **dict.fromkeys(Report.__dataclass_fields__, 0)
    | {"without": "", "started": 40_000, "finished": True, "seconds": 1.0}
)


def many(count):
    entries = [line for number in range(count) for line in whole_run(f"p{number}", 102.0 + number / 1e4, number % 8)]
    skipped = lines(*((103.0, 0, f"skipped p{number}", "m2") for number in range(count // 5)))
    killed = whole_run("p", 104.9, thread=3)[:2]
    return reconstruct(history((*STARTS, KILL), of_11=entries + skipped + killed))


def test_few_runs_are_a_bar_each_and_many_are_put_together_and_that_is_said():
    few, lots = many(200), many(40_000)
    assert (per_bar(few), per_bar(lots)) == (1, 3)
    traces = {trace["meta"]: trace for trace in figure(lots)["data"]}
    bars = traces["runs completed"]
    assert len(bars["x"]) == len(bars["customdata"]) == 8 * -(-5_000 // 3)
    assert bars["customdata"][0][4] == "and 2 more runs until 2.4016 s"
    assert len(traces["runs killed"]["x"]) == 1
    assert len(traces["marks skipped"]["x"]) == -(-8_000 // 3)
    assert "AGGREGATED: of 40,000 runs, up to 3" in page(REPORT, lots)
    assert "AGGREGATED" not in page(REPORT, few)
    assert len(page(REPORT, lots)) < 8e6


def test_plotly_knows_everything_that_the_figure_says():
    from plotly.graph_objects import Figure

    deeds = (*STARTS, KILL, AGAIN, Deed(What.KILL_NODE, 1, 104.0, ""), Deed(What.RESTART_NODE, 1, 110.0, ""))
    entries = {"of_11": whole_run("p1", 104.0)[:2], "of_33": whole_run("p1", 109.0, kind="takeover")}
    spec = figure(reconstruct(history(deeds, **entries)))
    assert len(Figure(spec).data) == len(spec["data"])


def test_what_is_wrong_is_marked_in_the_header():
    good = page(REPORT, many(8))
    assert "class=wrong" not in good
    bad = page(replace(REPORT, charged_twice=3, without="gateway-key"), many(8))
    assert bad.count("<div class=wrong><dt>charged twice</dt><dd>3<") == bad.count("class=wrong") == 1
    assert "demo without the gateway-key" in bad
    assert "<div class=wrong><dt>seconds" in page(replace(REPORT, finished=False), many(8))
