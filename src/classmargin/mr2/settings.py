"""Settings of the objective that only make sense together, checked once when it is built."""

from __future__ import annotations

from typing import Any

from classmargin._checks import check_choice, check_number


def checked_temperature(temperature: Any, factor: float) -> float | str:
    """Return a number or the name of a rule; a factor goes with a rule only."""
    if isinstance(temperature, str):
        return check_choice("temperature", temperature, ("total-variance", "dimension"))
    if factor != 1.0:
        raise ValueError(f"temperature_factor must be 1 with a number as temperature, got {factor}")
    return check_number("temperature", temperature, above=0.0)


def check_estimator(estimator: str, margin_source: str, positives: str) -> None:
    """Refuse what needs the class means where the estimator keeps none."""
    for name, value, needs in (
        ("margin_source", margin_source, "relative-spread"),
        ("positives", positives, "moments"),
    ):
        if value == needs and estimator != "moments":
            raise ValueError(f"{name}={needs!r} needs estimator='moments', got estimator={estimator!r}")
