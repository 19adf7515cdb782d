import runpy
import socket
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # toy_training.py is shared with the script that runs in two processes
EXAMPLES = HERE.parents[1] / "examples"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_example(tmp_path, monkeypatch, capsys):
    """Return a function that runs a file of ``examples/`` as a script, without network, and returns what it printed."""

    def refuse(*_):
        raise AssertionError("the example wants the network")

    def run(name, *arguments):
        for way in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, way, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def without_package(monkeypatch):
    """Return a function that makes a package look as if it were not installed."""

    def hide(name):
        for module in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)

    return hide
