"""Nothing leaves the machine unless asked: no module can, and nothing tries."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from import_graph import all_imports
from soak.tiny_task import train_words, write_features

NETWORK = {
    "aiohttp", "asyncio", "ftplib", "grpc", "http", "httpx", "imaplib", "poplib", "requests", "smtplib", "socket",
    "socketserver", "ssl", "telnetlib", "urllib", "urllib3", "websockets", "xmlrpc",
}  # fmt: skip
TELEMETRY = {"sentry_sdk", "posthog", "segment", "analytics", "opentelemetry", "scarf", "datadog", "newrelic"}


def importers(names: set[str]) -> set[str]:
    return {found.importer for found in all_imports() if found.target.split(".")[0] in names}


def test_only_the_download_of_data_sets_can_reach_the_network():
    assert importers(NETWORK) == {"data.catalog"}


def test_no_module_reports_to_anybody():
    assert importers(TELEMETRY) == set()


def downloadable() -> list[str]:
    from classmargin.data import list_data

    return [info.name for info in list_data() if info.downloads]


@pytest.mark.parametrize("name", downloadable())
@pytest.mark.parametrize("download", [False, True])
def test_a_data_set_is_downloaded_only_when_asked_for(name, download, tmp_path, monkeypatch):
    from classmargin.data import load as module

    asked = []

    def refuse(files, folder):
        asked.append(files)
        raise ConnectionError("no network here")

    monkeypatch.setattr(module.catalog, "download_files", refuse)
    with pytest.raises((FileNotFoundError, ConnectionError, ValueError)):
        module.load_data(name, root=tmp_path, **({"download": True} if download else {}))
    assert len(asked) == int(download)


def without_network(command: list[str], attempts: Path) -> subprocess.CompletedProcess:
    attempts.touch()
    path = os.pathsep.join([str(Path(__file__).parent / "no_network"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "NETWORK_ATTEMPTS": str(attempts)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_training_with_its_audit_does_not_try_to_reach_anybody(tmp_path, monkeypatch):
    import socket

    from classmargin.cli.main import main

    attempts = []

    def refuse(*words, **options):
        attempts.append(words)
        raise OSError("no network here")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    data = write_features(tmp_path / "features.npz")
    assert main(train_words(data, "mr2", tmp_path / "run", epochs=1)) == 0
    assert (tmp_path / "run" / "audit.json").exists()
    assert attempts == []


def test_the_refusal_works(tmp_path):
    command = [sys.executable, "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9')"]
    answer = without_network(command, tmp_path / "attempts")
    assert answer.returncode != 0
    assert "no network here" in answer.stderr
    assert "127.0.0.1" in (tmp_path / "attempts").read_text()


@pytest.mark.slow
def test_the_demo_runs_to_its_report_without_network(tmp_path):
    """The demo of ``make demo`` with less of everything; its workers have no network either."""
    script = f"""
        from classmargin.cli import improve
        from classmargin.cli.main import main
        improve.DEMO_BUDGET = "3 runs"
        improve.DEMO_SETTINGS["loop"]["epochs"] = 1
        improve.DEMO_SETTINGS["data"]["fraction"] = 0.1
        raise SystemExit(main(["demo", "--out", {str(tmp_path / "demo")!r}]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    answer = without_network(command, tmp_path / "attempts")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "demo" / "report.html").stat().st_size > 100_000
    assert (tmp_path / "attempts").read_text() == ""
