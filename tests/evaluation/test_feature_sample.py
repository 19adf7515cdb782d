import numpy as np

from classmargin.evaluation.evidence import KeptFeatures, priorities_of


def kept_of(features, ids, parts, limit=50):
    kept = KeptFeatures(limit, seed=0)
    first = 0
    for rows in parts:
        kept.add(features[rows], None if ids is None else ids[rows], first=first)
        first += len(rows)
    return kept


def test_the_choice_depends_on_identities_and_not_on_batches_or_order():
    rng = np.random.default_rng(0)
    features, ids = rng.normal(size=(400, 3)), rng.permutation(400)
    whole = kept_of(features, ids, [np.arange(400)]).rows()
    mixed = kept_of(features, ids, np.array_split(rng.permutation(400), 7)).rows()
    assert len(whole[0]) == 50
    assert {tuple(row) for row in whole[0]} == {tuple(row) for row in mixed[0]}


def test_positions_lead_to_the_rows():
    features = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    rows, positions = kept_of(features, None, np.array_split(np.arange(300), 4)).rows()
    np.testing.assert_array_equal(features[positions], rows)
    assert (np.diff(positions) > 0).all()


def test_every_sample_is_kept_equally_often():
    counts = np.zeros(40)
    for seed in range(2000):
        counts[np.argsort(priorities_of(np.arange(40), seed))[:10]] += 1
    assert counts.min() > 400
    assert counts.max() < 600


def test_fewer_samples_than_the_limit_are_all_kept_and_none_are_none():
    assert len(kept_of(np.ones((7, 2)), None, [np.arange(7)]).rows()[0]) == 7
    assert KeptFeatures(5, seed=0).rows() is None
    assert kept_of(np.ones((7, 2)), None, [np.arange(7)], limit=0).rows() is None


def test_text_identities_have_priorities():
    assert len(np.unique(priorities_of(np.array([f"image {i}" for i in range(100)]), 0))) == 100
