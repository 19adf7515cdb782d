"""The threads of a group of processes have ended before the interpreter does: one that still runs Python then aborts it."""

import subprocess
import sys

import pytest

# One process is a group too. The thread of its last message is kept busy with Python until after the last line.
PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from classmargin.training import devices
from classmargin.training.config import RunConfig

def start(config):
    devices.prepare_group()
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)

def run():
    with devices.started(RunConfig()):
        network = DistributedDataParallel(torch.nn.Linear(2, 2))
        network.watchers = [network]  # a cycle, as hooks make them
        network(torch.ones(1, 2)).sum().backward()
        message = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        message.add_done_callback(lambda _: time.sleep(0.5))
        if sys.argv[2] == "error":
            raise ValueError("it ends with an error")

devices.start = start
try:
    run()
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("way", ["done", "error"])
def test_a_group_has_ended_before_the_interpreter_does(way, tmp_path):
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path), way]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "it ends with an error\n" * (way == "error")), answer.stderr
