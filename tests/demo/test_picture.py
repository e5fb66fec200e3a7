"""The demo's picture in a real browser: everything that happened is on it, and it asks the network for nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from tests.tools.browser import Browser, find_chromium

COMMAND = [sys.executable, "-m", "dramatiq_idem", "demo", "--json"]

# For each trace the elements that stand in the page, where they are, and their texts' data: what is seen, not what was
# sent.
DRAWN = """
const found = {};
for (const group of document.querySelectorAll('#timeline .barlayer .trace, #timeline .scatterlayer .trace')) {
  const trace = group.__data__[0].trace;
  const elements = [...group.querySelectorAll('.point path, path.point')];
  found[trace.meta] = {
    boxes: elements.map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right, box.height]),
    about: [...(trace.customdata || [])],
    visible: elements.filter((one) => getComputedStyle(one).display !== 'none').length,
  };
}
return found;
"""


@pytest.fixture
def browser(tmp_path):
    """A fresh browser, which must be there in CI."""
    directory = tmp_path / "profile"
    browser = Browser(directory)
    yield browser
    browser.close()


def draw(path, *options):
    """Run the demo; return its report."""
    command = [*COMMAND, "--report", str(path), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert f"A picture of it: {path.resolve()}\n" in ended.stderr, ended
    return json.loads(ended.stdout.splitlines()[-1])


def boxes(drawn, what):
    return drawn.get(what, {"boxes": []})["boxes"]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_picture_shows_what_the_journals_and_the_ledger_say(default_server, browser, tmp_path):
    path = tmp_path / "new" / "demo.html"
    report = draw(path, "--payments", "800", "--seed", "7")
    assert report["ok"]
    browser.open(path)
    drawn = browser.run(DRAWN)
    runs = {what: found for what, found in drawn.items() if what.startswith("runs ")}
    assert sum(found["visible"] for found in runs.values()) == report["started"]
    assert len(boxes(drawn, "runs killed")) == report["cut_off"] > 0
    assert len(boxes(drawn, "marks takeover")) == report["takeovers"] > 0
    assert len(boxes(drawn, "marks skipped")) == report["skipped"] > 0
    assert len(boxes(drawn, "marks deferred-busy")) == report["busy"]
    assert len(boxes(drawn, "kills")) == report["workers_killed"] + report["nodes_killed"] == 3
    assert len(boxes(drawn, "node down")) == len(boxes(drawn, "node waiting")) == 1
    well = Counter(
        about[0] for what in ("runs completed", "runs takeover") for about in runs.get(what, {"about": []})["about"]
    )
    unwritten = Counter(about[0] for about in runs["runs killed"]["about"] if "had been recorded" in about[4])
    assert len(well) + len(unwritten) == (well + unwritten).total() == report["charges"] == 800, "each payment once"
    assert all(right > left and height > 5 for found in runs.values() for left, right, height in found["boxes"])
    kills = [(left + right) / 2 for left, right, _ in boxes(drawn, "kills")]
    for _, right, _ in boxes(drawn, "runs killed"):
        assert min(abs(right - kill) for kill in kills) < 3, "what was cut off ends at a kill"
    assert browser.complaints() == []
    assert browser.requests() == []


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_texts_name_key_message_and_times(default_server, browser, tmp_path):
    path = tmp_path / "demo.html"
    report = draw(path, "--payments", "300")
    browser.open(path)
    said = browser.run("return document.body.innerText")
    for name, count in (("payments", "300"), ("messages sent", "360"), ("body starts", f"{report['started']:,}")):
        assert f"{name}\n{count}\n" in said
    assert "AGGREGATED" not in said
    assert "worker 1 killed" in said
    assert "thread 8" in said
    assert "Share" not in browser.run(
        "return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title) + ''"
    )
    kill = hover(browser, "kills")
    assert "gets SIGKILL: payments under way in it" in kill
    takeover = hover(browser, "marks takeover")
    assert "job:payment:pay_" in takeover
    assert "message " in takeover
    assert takeover.rstrip().endswith(" s")
    assert browser.complaints() == []
    assert browser.requests() == []


def hover(browser, what):
    """Move the mouse to the first mark of a trace, with all others out of its way; return the text that appears."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.wait import WebDriverWait

    # A worker that is started again at once has its mark on that of its end: nobody could point at that one.
    element = browser.run(
        "const plot = document.getElementById('timeline'), "
        f"is_it = trace => trace.meta === '{what}';"
        "Plotly.restyle(plot, {visible: plot.data.map(trace => is_it(trace) || 'legendonly')});"
        "for (const group of plot.querySelectorAll('.scatterlayer .trace')) {"
        "  if (is_it(group.__data__[0].trace)) return group.querySelector('path.point');"
        "}"
    )
    ActionChains(browser.driver).move_by_offset(0, 0).move_to_element(element).perform()
    shown = (
        "return [...document.querySelectorAll('#timeline .hoverlayer .hovertext')].map(one => one.textContent).join()"
    )
    return WebDriverWait(browser.driver, 10).until(lambda _: browser.run(shown))


def test_the_browser_sees_errors_and_requests(browser, tmp_path):
    """Else the pictures above would be good whatever they did."""
    page = tmp_path / "bad.html"
    with asked_for() as (url, paths):
        page.write_text(f"<link rel=icon href='data:,'><img src='{url}/pixel'><script>nothing.at.all</script>")
        browser.open(page)
        assert browser.requests() == [f"{url}/pixel"]
        (complaint,) = [line for line in browser.complaints() if "nothing is not defined" in line]
        assert complaint.startswith("SEVERE")
    assert paths == ["/pixel"]


@contextlib.contextmanager
def asked_for():
    """A web server; yields its address and the paths that it was asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
            thread.join(5.0)


def test_without_chromium_a_laptop_skips_and_ci_fails(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium chromium-driver"):
        find_chromium()
    monkeypatch.setenv("CI", "true")
    # a skip is caught here too: it would leave this test skipped, and so say nothing
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match="CI has to test it"):
        find_chromium()


def test_the_option_says_which_extra_it_needs_before_anything_starts(tmp_path):
    hide = "import sys; sys.modules['plotly'] = None; import dramatiq_idem.cli; dramatiq_idem.cli.main()"
    command = [sys.executable, "-c", hide, "demo", "--report", str(tmp_path / "demo.html")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "Error: plotly is not installed; try: pip install 'dramatiq-idem[report]'\n"
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").touch()
    command = [*COMMAND, "--report", str(tmp_path / "file" / "demo.html")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "cannot write into" in ended.stderr
    assert ended.stdout == ""
