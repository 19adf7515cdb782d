"""Same seed, same machine: the same bits. Other numbers of workers: the same order."""

from __future__ import annotations

import numpy as np
import pytest
from soak.determinism import fingerprint, method_names
from soak.tiny_task import train_words, write_features

from classmargin.cli.main import main


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_features(tmp_path_factory.mktemp("data") / "features.npz", each=8)


# One of each kind in every test run; all of them are trained twice, and compared, in tests/contract as well.
QUICK = {"erm", "mr2", "lff", "jtt", "drl", "sam+mr2"}
METHODS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in method_names()]


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_gives_the_same_bits(method, data, tmp_path):
    for name in ("one", "other"):
        assert main(train_words(data, method, tmp_path / name, epochs=3)) == 0
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "other")


def test_another_seed_gives_other_bits(data, tmp_path):
    for seed in (0, 1):
        words = train_words(data, "mr2", tmp_path / str(seed), epochs=1)
        assert main([*words, "--seed", str(seed)]) == 0
    assert fingerprint(tmp_path / "0") != fingerprint(tmp_path / "1")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_processes_that_share_only_the_seed_agree_for_every_method(soak):
    numbers = soak("determinism")
    assert numbers["methods"] == numbers["identical"] == len(method_names())


def test_the_number_of_workers_changes_neither_order_nor_pixels(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    import classmargin.data.load as prepare
    from classmargin.data import load_data, make_loader

    rng = np.random.default_rng(0)
    for part, count in (("train", 13), ("test", 2)):
        for label in ("a", "b"):
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    monkeypatch.setattr(prepare, "MEMORY_LIMIT", 1)
    bundle = load_data(str(tmp_path))
    assert bundle.streamed

    def seen(workers: int) -> list[tuple[list[int], bytes]]:
        loader = make_loader(
            bundle, "train", batch_size=4, training=True, augmentation="standard", seed=3, workers=workers
        )
        return [(b.index.tolist(), b.inputs.numpy().tobytes()) for epoch in (0, 1) for b in loader.epoch(epoch)]

    alone = seen(0)
    assert len(alone) >= 8
    assert alone[: len(alone) // 2] != alone[len(alone) // 2 :], "epochs differ"
    for workers in (1, 2):
        assert seen(workers) == alone
