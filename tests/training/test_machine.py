"""What is chosen for the machine at hand."""

from __future__ import annotations

import pytest
import torch

from classmargin.training.machine import choose_precision


@pytest.fixture
def processor(monkeypatch):
    """Return a function that pretends to a processor with or without bfloat16 instructions, and no GPU."""

    def pretend(*, native: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)

    return pretend


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_bfloat16_is_chosen_only_where_the_processor_has_it(processor, native, chosen):
    processor(native=native)
    assert choose_precision("auto", "cpu") == chosen
    assert choose_precision("auto", "auto") == chosen


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_a_graphics_card_is_asked_before_the_processor(processor, monkeypatch, native, chosen):
    processor(native=not native)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose_precision("auto", "auto") == chosen
    assert choose_precision("auto", "cpu") != chosen


def test_a_precision_that_was_asked_for_is_used(processor):
    processor(native=False)
    assert choose_precision("bf16-mixed", "cpu") == "bf16-mixed"
