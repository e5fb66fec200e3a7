"""The compose files are valid for old and new tools, fit each other, and name only metrics that exist."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dramatiq_idem.metrics import METRICS
from redlock.local import available_servers
from tests.tools.compose import GENERATIONS, lacking
from tests.tools.workbench import wait_until

NODES = ("node-a", "node-b", "node-c")


@pytest.fixture
def load():
    """Read a YAML file."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        lacking("PyYAML", "pip install PyYAML")
    return lambda path: yaml.safe_load(path.read_text())


@pytest.fixture
def services(load, compose):
    return load(compose / "docker-compose.yml")["services"]


@pytest.fixture
def copied(compose, tmp_path):
    """A copy with the example's settings in force."""
    shutil.copytree(compose, tmp_path / "compose")
    shutil.copy(compose / ".env.example", tmp_path / "compose/.env")
    return tmp_path / "compose"


def clean_environment():
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@pytest.fixture(params=GENERATIONS)
def command(request):
    """A compose command; the test runs for each generation."""
    return GENERATIONS[request.param]()


# -- compose


def config(command, folder):
    """Let a compose command read the file."""
    return subprocess.run(
        [*command, "config"], cwd=folder, env=clean_environment(), check=False, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_the_compose_file_is_valid(command, copied, services):
    """Without a word of warning: both generations tell of obsolete or unknown keys on stderr."""
    read = config(command, copied)
    assert (read.returncode, read.stderr) == (0, "")
    assert all(re.search(rf"^  {name}:$", read.stdout, re.MULTILINE) for name in services)


def test_without_passwords_nothing_starts(command, copied):
    (copied / ".env").unlink()
    read = config(command, copied)
    assert read.returncode != 0
    assert "copy .env.example to .env" in read.stderr


def test_there_are_three_nodes_that_share_nothing(services):
    volumes = [volume for name in NODES for volume in services[name]["volumes"] if volume.endswith(":/data")]
    assert len(set(volumes)) == 3
    for name in NODES:
        assert services[name]["environment"]["NODE_PASSWORD"].startswith("${NODE_PASSWORD:?")
        assert services[name]["healthcheck"]


def test_ports_are_published_on_loopback_only(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_images_can_be_chosen_and_are_pinned_by_default(services):
    for name, service in services.items():
        assert re.fullmatch(r"\$\{[A-Z]+_IMAGE:-[a-z/-]+(:v?\d[\w.-]*)?\}", service["image"]), name
        assert "build" in service or ":v" in service["image"] or re.search(r":\d", service["image"]), name


def test_the_example_names_every_setting(compose):
    used = set(re.findall(r"\$\{([A-Z_]+)", (compose / "docker-compose.yml").read_text()))
    named = set(re.findall(r"^#?([A-Z_]+)=", (compose / ".env.example").read_text(), re.MULTILINE))
    assert used == named


def test_prometheus_asks_all_workers(load, services, compose):
    (job,) = load(compose / "prometheus.yml")["scrape_configs"]
    targets = {target for group in job["static_configs"] for target in group["targets"]}
    assert targets == {f"{name}:9191" for name in services if name.startswith("worker")}


def test_prometheus_accepts_its_configuration(tool, copied):
    subprocess.run([tool("promtool", "prometheus"), "check", "config", "prometheus.yml"], cwd=copied, check=True)


def test_alerts_name_metrics_that_exist(load, compose, unknown_metrics):
    (group,) = load(compose / "alerts.yml")["groups"]
    for rule in group["rules"]:
        assert not unknown_metrics(rule["expr"]), rule["alert"]


# -- nodes


def test_a_node_is_durable_capped_and_locked(compose, tmp_path):
    """Under the start script of the containers, on a real server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    names = tmp_path / "bin"
    names.mkdir()
    server = available_servers()[0]
    (names / Path(server).name).symlink_to(server)
    environment = clean_environment() | {"NODE_PASSWORD": "open-sesame", "NODE_MEMORY": "64mb"}
    environment["PATH"] = f"{names}:{environment['PATH']}"
    with subprocess.Popen(
        ["sh", str(compose / "node.sh"), "--port", str(port), "--dir", str(tmp_path)],
        env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: is_open(port))
            with redis.Redis(port=port, password="open-sesame", decode_responses=True) as client:
                for name, value in {
                    "appendonly": "yes",
                    "appendfsync": "always",
                    "save": "",
                    "maxmemory-policy": "noeviction",
                    "maxmemory": str(64 * 1024 * 1024),
                }.items():
                    assert client.config_get(name) == {name: value}
            with (
                redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger,
                pytest.raises(redis.AuthenticationError),
            ):
                stranger.ping()
            line = Path(f"/proc/{process.pid}/cmdline")
            assert not line.exists() or "open-sesame" not in line.read_text()
        finally:
            process.kill()


def is_open(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


# -- Grafana


def test_every_query_names_metrics_that_exist(dashboard, unknown_metrics):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert not unknown_metrics(target["expr"]), panel["title"]


def test_every_metric_is_on_the_dashboard(dashboard):
    queries = json.dumps([panel["targets"] for panel in dashboard["panels"]])
    assert [name for name in METRICS if name not in queries] == []


def test_labels_in_queries_exist(dashboard):
    """A label that no metric has makes a panel that is empty for ever."""
    labels = {label for metric in METRICS.values() for label in metric.labels} | {"le", "actor_name"}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            used = {label.strip() for group in grouped for label in group.split(",")}
            used |= set(re.findall(r"[{,]\s*(\w+)=", target["expr"]))
            used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= labels, panel["title"]


def test_panels_have_places_of_their_own(dashboard):
    cells = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_provisioning_fits_dashboard_and_containers(load, services, compose, dashboard):
    provisioning = compose / "grafana/provisioning"
    (source,) = load(provisioning / "datasources/prometheus.yml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
    (provider,) = load(provisioning / "dashboards/dashboards.yml")["providers"]
    mounts = dict(reversed(volume.split(":")[:2]) for volume in services["grafana"]["volumes"])
    assert (compose / mounts[provider["options"]["path"]] / "dashboard.json").is_file()
    assert (compose / mounts["/etc/grafana/provisioning"]).samefile(provisioning)
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == (
        f"{provider['options']['path']}/dashboard.json"
    )


def test_mounted_files_exist(services, compose):
    for name, service in services.items():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (compose / volume.split(":")[0]).exists(), (name, volume)


def test_the_image_gets_files_that_exist(compose):
    for line in (compose / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            assert all((compose.parent / source).exists() for source in line.split()[1:-1]), line


# -- disturb.sh

FAKE = """#!/bin/sh
case "$*" in
"compose version") exit 0 ;;
*"ps -q"*) for last; do :; done; echo "id-$last" ;;
*) echo "docker $*" >> "$LOG" ;;
esac
"""


@pytest.fixture
def fakes(tmp_path):
    """Stand-ins for docker and sleep that write down what they are told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"docker": FAKE, "sleep": '#!/bin/sh\necho "sleep" >> "$LOG"\nexec "$SLEEP" 0.02\n'}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    path = f"{folder}:{os.environ['PATH']}"
    return log, {"PATH": path, "LOG": str(log), "SLEEP": str(shutil.which("sleep")), "REST": "1"}


def disturbed(log):
    """Return what was done, as (what, container), without the waits."""
    found = []
    for line in log.read_text().splitlines():
        if line.startswith("docker"):
            words = line.split()
            what = " ".join(words[1:3]) if words[1] == "network" else words[1]
            found.append((what, words[-1]))
    return found


UNDO = {"kill": "start", "pause": "unpause", "network disconnect": "network connect"}


def test_each_disturbance_is_undone_before_the_next(compose, fakes):
    log, environment = fakes
    subprocess.run([str(compose / "disturb.sh"), "60"], env=environment, check=True, capture_output=True, timeout=20)
    found = disturbed(log)
    assert len(found) == 120
    for (what, container), undone in zip(found[::2], found[1::2], strict=True):
        assert undone == (UNDO[what], container)
    assert {what for what, _ in found[::2]} == set(UNDO)
    assert any("worker" in container for _, container in found)
    assert "--alias node-" in log.read_text()


def test_an_interrupted_disturbance_is_undone(compose, fakes):
    log, environment = fakes
    with subprocess.Popen([str(compose / "disturb.sh")], env=environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(disturbed(log)) >= 5)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    found = disturbed(log)
    assert len(found) % 2 == 0
    what, container = found[-2]
    assert found[-1] == (UNDO[what], container)
