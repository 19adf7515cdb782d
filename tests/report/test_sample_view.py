"""Which samples a page shows, and that pictures from strangers are re-encoded, refused or left out."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from classmargin.evaluation.auditing import audit
from classmargin.report import sample_view as module
from classmargin.report.html_pages import write_audit_html
from classmargin.report.sample_view import (
    MOST,
    MOST_ROWS,
    SIDE,
    Pictures,
    data_uris,
    sample_view,
)

Image = pytest.importorskip("PIL.Image")


def audit_of(ids, **options):
    labels = np.arange(len(ids)) % 2
    return audit(labels, predictions=1 - labels, class_names=["a", "b"], sample_id=ids, bootstrap=0, **options)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "images"
    (place / "deep").mkdir(parents=True)
    Image.new("RGB", (400, 200), "red").save(place / "red.jpg")
    Image.new("L", (20, 20), 128).save(place / "deep" / "grey.png")
    return place


def decoded(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


def test_pictures_are_found_by_identity_and_made_small(folder):
    found = data_uris(Pictures(folder, audit_of(["red.jpg", "deep/grey.png"])), [0, 1])
    assert max(decoded(found[0]).size) == SIDE
    assert decoded(found[0]).getpixel((5, 5))[0] > 200
    assert found[1].startswith("data:image/png")
    assert decoded(found[1]).size == (20, 20)


def test_the_size_of_a_picture_is_that_of_its_file_although_it_is_decoded_small(folder):
    pictures = Pictures(folder, audit_of(["red.jpg", "deep/grey.png"]))
    assert pictures.properties(2)["pixels"] == [400 * 200, 20 * 20]


def test_nothing_outside_of_the_folder_is_read(folder, tmp_path):
    Image.new("RGB", (5, 5)).save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    ids = ["../secret.png", str(tmp_path / "secret.png"), "link.png", "nowhere.png"]
    pictures = Pictures(folder, audit_of(ids))
    assert data_uris(pictures, range(4)) == {}
    assert pictures.unreadable == 4


def test_bombs_and_damaged_files_are_left_out_and_counted(folder, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_PIXELS", 50_000)
    (folder / "text.png").write_text("no picture")
    (folder / "cut.jpg").write_bytes((folder / "red.jpg").read_bytes()[:100])
    (folder / "script.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    pictures = Pictures(folder, audit_of(["red.jpg", "text.png", "cut.jpg", "script.eps", "deep/grey.png"]))
    assert list(data_uris(pictures, range(5))) == [4]  # 400 x 200 are too many pixels
    assert pictures.unreadable == 4


@pytest.mark.parametrize(
    ("array", "pixel"),
    [
        (np.full((2, 8, 8), 200, dtype=np.uint8), 200),
        (np.full((2, 8, 8, 1), 200, dtype=np.uint8), 200),
        (np.full((2, 3, 8, 8), 0.5, dtype=np.float32), 128),
        (np.full((2, 8, 8, 3), 200.0), 200),
    ],
)
def test_arrays_of_all_usual_shapes_become_pictures(array, pixel):
    uri = data_uris(Pictures(array, audit_of(["x", "y"])), [0])[0]
    assert decoded(uri).convert("L").getpixel((2, 2)) == pixel


def test_pictures_of_another_number_or_shape_are_refused():
    with pytest.raises(ValueError, match=r"one entry per sample \(2\), got 3"):
        Pictures(np.zeros((3, 4, 4)), audit_of(["x", "y"]))
    with pytest.raises(ValueError, match="got shape"):
        Pictures(np.zeros((2, 4)), audit_of(["x", "y"]))
    with pytest.raises(ValueError, match="no folder"):
        Pictures("nowhere at all", audit_of(["x", "y"]))


def test_the_page_stays_within_its_bytes(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 3000)
    noise = np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3)).astype(np.uint8)
    found = data_uris(Pictures(noise, audit_of(list(range(40)))), range(40))
    assert 0 < sum(map(len, found.values())) <= 3000


def test_every_kind_of_error_of_a_class_is_shown_and_the_rest_is_counted():
    labels = np.zeros(400, dtype=int)
    predictions = np.where(np.arange(400) < 300, 1, np.where(np.arange(400) < 303, 2, 0))
    view = sample_view(audit(labels, predictions=predictions, num_classes=3, bootstrap=0))
    errors = [row for row in view["rows"] if row[1] == 0]
    assert len(errors) == MOST[0]
    assert sum(row[3] == 2 for row in errors) == 3
    assert view["totals"][0] == [303, 0, 0]


def test_a_thousand_classes_stay_within_the_rows_and_lagging_ones_come_first():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(1000), 50)
    logits = rng.normal(size=(50_000, 1000)).astype(np.float16)
    logits[np.arange(50_000), labels] += np.where(labels < 10, 2, 4.5)
    result = audit(labels, logits=logits, bootstrap=0)
    view = sample_view(result)
    assert len(view["rows"]) == MOST_ROWS
    per_class = np.bincount([row[0] for row in view["rows"]], minlength=1000)
    assert per_class.min() >= 1
    errors = np.bincount(result.labels[result.labels != result.predictions], minlength=1000)
    lags = result.by_class["lags"].to_numpy()
    assert (per_class[lags] >= np.minimum(errors[lags], MOST[0])).all()
    assert per_class.max() <= sum(MOST)


def test_hostile_texts_and_names_stay_inside_their_script(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>"
    result = audit_of([hostile, "y"])
    text = write_audit_html(result, tmp_path / "r.html", feature_map=False, texts=[hostile, "q" * 1000]).read_text(
        "utf-8"
    )
    assert "<img src=x" not in text
    assert "q" * 300 + "\\u2026" in text
    assert "q" * 301 not in text
    with pytest.raises(ValueError, match="texts must have one entry per sample"):
        write_audit_html(result, tmp_path / "r.html", texts=["x"])
