"""Audits that the report tests show: real ones, made from small drawn test sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.comparison import Comparison, compare

NASTY_NAMES = (
    "<script>window.pwned = 1</script>",
    "</script><img src=x onerror='window.pwned = 1'>",
    '"><svg onload="window.pwned = 1">',
    "<b>bold</b> & <a href='https://example.org/'>link</a>",
    "{{ 7 * 7 }} %{x} [red]red[/red] | 50% _x_ $y$",
    "\x1b[31mred\x07\nnext line",
)


def draw_arrays(num_classes: int, per_class: int, *, noise: float = 1.2, seed: int = 0, dim: int = 6) -> dict[str, Any]:
    """Return a test set in which later classes spread more and are therefore harder."""
    data = np.random.default_rng(0)  # the samples are the same for every model
    means = 3 * data.normal(size=(num_classes, dim))
    labels = np.repeat(np.arange(num_classes), per_class)
    spread = np.linspace(0.5, 2.5, num_classes)
    features = means[labels] + spread[labels, None] * data.normal(size=(len(labels), dim))
    weight = means + noise * np.random.default_rng(seed).normal(size=means.shape)
    logits = features @ weight.T - 0.5 * (weight**2).sum(axis=1)
    return {"labels": labels, "logits": logits, "features": features, "classifier_weight": weight}


@pytest.fixture(scope="session")
def make_audit() -> Callable[..., Audit]:
    def make(
        num_classes: int = 6,
        per_class: int = 25,
        *,
        noise: float = 1.2,
        seed: int = 0,
        keep: tuple[str, ...] = ("logits", "features", "classifier_weight"),
        **options: Any,
    ) -> Audit:
        arrays = draw_arrays(num_classes, per_class, noise=noise, seed=seed)
        return audit(arrays["labels"], **{name: arrays[name] for name in keep}, **{"bootstrap": 200, **options})

    return make


@pytest.fixture(scope="session")
def small_audit(make_audit: Callable[..., Audit]) -> Audit:
    return make_audit(class_names=[f"class {k}" for k in range(6)])


@pytest.fixture(scope="session")
def nasty_audit(make_audit: Callable[..., Audit]) -> Audit:
    return make_audit(class_names=NASTY_NAMES)


@pytest.fixture(scope="session")
def nasty_names() -> tuple[str, ...]:
    return NASTY_NAMES


@pytest.fixture(scope="session")
def wide_audit(make_audit: Callable[..., Audit]) -> Audit:
    """More classes than one matrix can show."""
    return make_audit(200, 10)


@pytest.fixture(scope="session")
def comparison(make_audit: Callable[..., Audit]) -> Comparison:
    worse, better = (make_audit(noise=noise, class_names=NASTY_NAMES) for noise in (3.0, 0.2))
    return compare(worse, better, names=("<i>old</i>", "new & improved"), bootstrap=200)
