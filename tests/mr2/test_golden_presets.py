"""The presets ``paper`` and ``release`` give the values of version 0.4.0: stored before the core was rewritten."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from classmargin import MR2Loss

ROWS = json.loads((Path(__file__).parent / "golden_presets.json").read_text())["rows"]
TYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 2e-4}


def batches(seed, B, K, d, scale, offset, steps, ignored):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(K, d))
    for _ in range(steps):
        labels = random.integers(0, K, B)
        features = (centres[labels] + 0.7 * random.normal(size=(B, d))) * scale + offset
        logits = 2 * random.normal(size=(B, K))
        if ignored:
            labels[::5] = -100
        yield logits, labels, features


def wave(tensor):
    return (tensor.double() * torch.arange(1, tensor.numel() + 1).double().reshape(tensor.shape).sin()).sum()


def trained(row, transform=lambda loss: loss):
    """Return the loss after all steps and what each step gave."""
    dtype, case = TYPES[row["dtype"]], row["case"]
    loss = MR2Loss.preset(row["preset"], case["K"], case["d"])
    call, steps = transform(loss.terms), []
    for logits, labels, features in batches(**case):
        z, phi = (
            torch.tensor(x).to(torch.float64 if dtype == torch.float64 else torch.float32) for x in (logits, features)
        )
        z, phi = z.to(dtype).requires_grad_(), phi.to(dtype).requires_grad_()
        terms = call(z, torch.tensor(labels), phi)
        terms.total.backward()
        steps.append(
            {name: value.item() for name, value in terms._asdict().items()}
            | {"feature_gradient": float(wave(phi.grad)), "logit_gradient": float(wave(z.grad))}
        )
    return loss, steps


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['preset']}-{row['dtype']}-{row['case']['seed']}")
def test_presets_keep_the_values_of_0_4_0(row):
    loss, steps = trained(row)
    tolerance = TOLERANCE[row["dtype"]]
    for found, stored in zip(steps, row["steps"], strict=True):
        assert found == pytest.approx(stored, rel=tolerance, abs=tolerance * (50 if row["dtype"] == "bfloat16" else 1))
    assert loss.class_margins.tolist() == pytest.approx(row["class_margins"], rel=tolerance, abs=1e-7)
    assert float(loss.mean_spread) == pytest.approx(row["mean_spread"], rel=tolerance)
