"""An audit in TensorBoard: ten scalars, one table, the report: ``python examples/log_an_audit.py``.

Needs ``pip install 'classmargin[tensorboard,report]'``. With W&B give ``wandb.init(mode="offline")`` and with MLflow the
module ``mlflow`` instead of the writer; nothing else changes.
"""

import tempfile
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

import classmargin
from classmargin.integrations.trackers import log_audit

random = np.random.default_rng(0)
labels, logits = random.integers(5, size=400), random.standard_normal((400, 5))
logits[np.arange(400), labels] += 0.7 * labels  # later classes are easier
result = classmargin.audit(labels, logits=logits, bootstrap=200)

with tempfile.TemporaryDirectory() as folder:
    with SummaryWriter(folder) as writer:
        log_audit(result, writer, step=0)
    for path in sorted(Path(folder).iterdir()):
        print(f"{path.name.split('.')[0] if 'tfevents' in path.name else path.name}: {path.stat().st_size} bytes")
