"""Fuzzed prediction files, class names and configurations: a clear error or a result, never anything else."""

from __future__ import annotations

import io
import json
import zipfile

import hostile
import numpy as np
import pytest
from hostile import harmless, hostile_bytes, little_memory, long, quick
from hypothesis import given
from hypothesis import strategies as st

from classmargin.evaluation.input_checks import check_class_names
from classmargin.evaluation.prediction_files import read_class_names, read_predictions
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_parts import effective
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, to_toml

LABELS = np.repeat(np.arange(3), 4)
LOGITS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def table(kind: str) -> bytes:
    import pandas as pd

    columns = {"label": ["a", "b", "c"] * 4, **{f"p_{name}": np.full(12, 1 / 3) for name in "abc"}}
    frame, file = pd.DataFrame({**columns, "sample_id": np.arange(12)}), io.BytesIO()
    frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file)
    return file.getvalue()


GOOD = {
    "npz": npz(labels=LABELS, logits=LOGITS, class_names=np.array(["a", "b", "c"]), features=LOGITS),
    "csv": table("csv"),
    "parquet": table("parquet"),
}


def read_one(folder, kind: str, content: bytes) -> None:
    file = folder / f"predictions.{kind}"
    file.write_bytes(content)
    with little_memory(), harmless(f"predictions.{kind}"):
        read_predictions(file).audit(bootstrap=100)


@pytest.mark.parametrize("kind", GOOD)
def test_good_files_are_read(kind, tmp_path):
    (tmp_path / f"predictions.{kind}").write_bytes(GOOD[kind])
    assert len(read_predictions(tmp_path / f"predictions.{kind}").labels) == 12


@pytest.mark.parametrize("kind", GOOD)
@quick(25)
@given(data=st.data())
def test_damaged_predictions_end_in_words(kind, tmp_path, data):
    read_one(tmp_path, kind, data.draw(hostile_bytes(GOOD[kind])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", GOOD)
@long(1000)
@given(data=st.data())
def test_many_damaged_predictions_end_in_words(kind, tmp_path, data):
    read_one(tmp_path, kind, data.draw(hostile_bytes(GOOD[kind])))


# Arrays of every type and shape, in a file that is otherwise whole

dtypes = st.sampled_from(
    ["<i8", "<u1", "<f4", "<f8", ">i2", "?", "<c8", "<U3", "S2", "<M8[s]", "<m8[s]", "<f2", "i4,f4"]
)
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 12]), max_size=4).map(tuple)
odd_arrays = st.tuples(dtypes, shapes).map(lambda pair: np.zeros(pair[1], dtype=pair[0]))
names = st.sampled_from(
    [
        "labels",
        "logits",
        "probabilities",
        "predictions",
        "features",
        "classifier_weight",
        "class_names",
        "sample_id",
    ]
)


@quick(60)
@given(arrays=st.dictionaries(names, odd_arrays, max_size=5))
def test_arrays_of_any_kind_end_in_words(tmp_path, arrays):
    read_one(tmp_path, "npz", npz(**{"labels": LABELS, "logits": LOGITS, **arrays}))


@pytest.mark.slow
@long(700)
@given(arrays=st.dictionaries(names, odd_arrays, max_size=5))
def test_many_arrays_of_any_kind_end_in_words(tmp_path, arrays):
    read_one(tmp_path, "npz", npz(**{"labels": LABELS, "logits": LOGITS, **arrays}))


# A member's header is a Python literal: lie in it

headers = st.one_of(
    st.text(max_size=80),
    st.builds(
        lambda descr, shape: repr({"descr": descr, "fortran_order": False, "shape": shape}),
        st.sampled_from(["<f4", "|O", "<f8", "|S99999999", "<U1", [("a", "|O")], "no", 3, None]),
        st.one_of(
            st.tuples(st.integers(-5, 2**62)),
            st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
            st.none(),
            st.text(max_size=3),
        ),
    ),
    st.just("(" * 5000),
    st.just("[" * 200 + "]" * 200),
)


@quick(60)
@given(header=headers, body=st.binary(max_size=64))
def test_lies_in_an_array_header_cost_no_memory(tmp_path, header, body):
    packed = header.encode("utf-8", "replace")[:60_000]
    member = b"\x93NUMPY\x01\x00" + len(packed).to_bytes(2, "little") + packed + body
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("labels.npy", member)
        archive.writestr("logits.npy", member)
    read_one(tmp_path, "npz", file.getvalue())


@pytest.mark.parametrize("stored", [True, False], ids=["told", "untold"])
def test_a_parquet_file_that_stands_for_gigabytes_is_refused(tmp_path, stored):
    """One text of a megabyte, referred to by every row: kilobytes on disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 8000
    long_text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 2**20]))
    content = pa.table({"label": long_text, "prediction": pa.array(["y"] * rows)})
    pq.write_table(content, tmp_path / "predictions.parquet", store_schema=stored, compression="zstd")
    assert (tmp_path / "predictions.parquet").stat().st_size < 2**22
    hostile.counted["predictions.parquet"] += 1
    with little_memory(), pytest.raises(ValueError, match=r"more than the limit|at most 1000 letters"):
        read_predictions(tmp_path / "predictions.parquet", max_bytes=2**29)


def test_one_row_of_scores_cannot_ask_for_a_table_of_terabytes(tmp_path):
    """Some kilobytes packed; the counts of all pairs of so many classes would take 30 GB."""
    content = npz(labels=np.zeros(1, np.int64), logits=np.zeros((1, 60_000), np.float16))
    (tmp_path / "predictions.npz").write_bytes(content)
    hostile.counted["predictions.npz"] += 1
    with little_memory(), pytest.raises(ValueError, match="at most 32768 classes, got 60000"):
        read_predictions(tmp_path / "predictions.npz").audit(bootstrap=100)


@pytest.mark.parametrize("label", ["1e300", "99999999999999999999999999", "9" * 5000, "-1", "1.5", "nan", "inf"])
def test_class_numbers_beyond_all_reason_end_in_words(tmp_path, label):
    for rows in (f"label,prediction\n{label},0\n", f"label,p_0,p_1\n{label},0.5,0.5\n"):
        (tmp_path / "predictions.csv").write_text(rows)
        hostile.counted["predictions.csv"] += 1
        with little_memory(), pytest.raises((ValueError, TypeError)) as caught:
            read_predictions(tmp_path / "predictions.csv").audit(bootstrap=100, num_classes=2)
        assert str(caught.value)


def test_many_classes_of_one_name_are_told_apart_in_one_pass(tmp_path):
    names = np.array(["same"] * 20_000)
    content = npz(labels=np.zeros(1, np.int64), logits=np.zeros((1, 20_000), np.float16), class_names=names)
    (tmp_path / "predictions.npz").write_bytes(content)
    assert read_predictions(tmp_path / "predictions.npz").class_names is not None
    count = 1_000_000  # if every name were compared with every other, this would not end
    assert len(set(check_class_names(["same"] * count, count))) == count


# Class names


@quick(60)
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=50).map(lambda text: json.dumps([text]).encode())))
def test_class_names_of_any_bytes_end_in_words(tmp_path, content):
    for name in ("names.txt", "names.json"):
        (tmp_path / name).write_bytes(content)
        with harmless("class names"):
            assert read_class_names(tmp_path / name)


def test_json_nested_without_end_is_no_list_of_names(tmp_path):
    (tmp_path / "names.json").write_text("[" * 100_000)
    with harmless("class names"), pytest.raises(ValueError, match="cannot be read"):
        read_class_names(tmp_path / "names.json")


# Configurations

GOOD_TOML = to_toml(RunConfig())
keys = st.sampled_from(
    [f"{part}.{key}" for part, table in RunConfig().to_dict().items() for key in [*table, "nonsense"]]
)
values = st.one_of(
    st.integers(-(10**400), 10**400),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=20),
    st.booleans(),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text("ab", min_size=1, max_size=2), st.integers(), max_size=2),
    st.none(),
)


def read_config(folder, content: bytes) -> None:
    file = folder / "run.toml"
    file.write_bytes(content)
    with harmless("TOML"):
        effective(gather_config(file=file))


@quick(60)
@given(content=hostile_bytes(GOOD_TOML.encode()))
def test_damaged_configurations_end_in_words(tmp_path, content):
    read_config(tmp_path, content)


@pytest.mark.slow
@long(1000)
@given(content=hostile_bytes(GOOD_TOML.encode()))
def test_many_damaged_configurations_end_in_words(tmp_path, content):
    read_config(tmp_path, content)


@quick(150)
@given(key=keys, value=values)
def test_settings_of_any_type_and_size_end_in_words(key, value):
    part, _, name = key.partition(".")
    with harmless("TOML"):
        effective(build({part: {name: value}}))


TOWERS = {
    "lists": "x = " + "[" * 50_000,
    "digits": "x = " + "9" * 5000,
    "dots": "a." * 1000 + "b = 1",
    "tables": "x = " + "{x = " * 10_000,
}


@pytest.mark.parametrize("text", TOWERS.values(), ids=TOWERS)
def test_towers_and_giants_in_toml_are_refused(tmp_path, text):
    (tmp_path / "run.toml").write_text(text)
    hostile.counted["TOML"] += 1
    with pytest.raises(ValueError, match=r"not valid TOML|unknown table|must be"):
        gather_config(file=tmp_path / "run.toml")
    with harmless("TOML"):
        gather_config(overrides=[f"loop.epochs={text[4:]}"])


def test_a_configuration_of_megabytes_is_not_even_parsed(tmp_path):
    (tmp_path / "run.toml").write_text("a." * 10**6 + "b = 1")
    with pytest.raises(ValueError, match="larger than"):
        gather_config(file=tmp_path / "run.toml")
