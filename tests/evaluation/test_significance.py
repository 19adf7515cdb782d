import numpy as np
import pytest
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from classmargin.evaluation.paired_tests import (
    benjamini_hochberg,
    holm,
    margin_p_values,
    mcnemar_p_values,
)

PAIRS = [(0, 0), (5, 0), (3, 3), (1, 9), (40, 22), (0, 1), (200, 150)]


def test_mcnemar_equals_statsmodels():
    gained, lost = np.array(PAIRS).T
    expected = [mcnemar([[10, b], [c, 10]], exact=True).pvalue if b + c else 1.0 for b, c in PAIRS]
    np.testing.assert_allclose(mcnemar_p_values(gained, lost), expected, rtol=1e-10)


def test_one_sided_test_equals_scipy():
    gained, lost = np.array(PAIRS).T
    expected = [binomtest(c, b + c, alternative="greater").pvalue if b + c else 1.0 for b, c in PAIRS]
    np.testing.assert_allclose(margin_p_values(gained, lost, 500, 0.0), expected, rtol=1e-10)


@pytest.mark.parametrize(("ours", "theirs"), [(benjamini_hochberg, "fdr_bh"), (holm, "holm")])
def test_adjusted_p_values_equal_statsmodels(ours, theirs):
    values = np.random.default_rng(0).beta(0.3, 1.0, 50)
    np.testing.assert_allclose(ours(values), multipletests(values, method=theirs)[1], rtol=1e-12)


@pytest.mark.parametrize("adjust", [benjamini_hochberg, holm])
def test_unknown_p_values_do_not_count(adjust):
    values = np.array([0.01, np.nan, 0.04, 0.2])
    found = adjust(values)
    assert np.isnan(found[1])
    np.testing.assert_allclose(np.delete(found, 1), adjust(np.delete(values, 1)))


def test_tables_of_p_values_are_adjusted_together():
    values = np.random.default_rng(0).random((3, 4))
    np.testing.assert_allclose(benjamini_hochberg(values), benjamini_hochberg(values.ravel()).reshape(3, 4))


def test_false_discoveries_stay_below_alpha():
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        gained = rng.binomial(20, 0.5, 100)
        gained[:20] = rng.binomial(20, 0.95, 20)  # twenty real gains
        called = benjamini_hochberg(mcnemar_p_values(gained, 20 - gained)) <= 0.05
        rates.append(called[20:].sum() / max(called.sum(), 1))
    assert np.mean(rates) <= 0.05
