from __future__ import annotations

import numpy as np
import pytest
import torch

import classmargin

RNG = np.random.default_rng(0)
MEANS = RNG.normal(size=(3, 4)) * 2
Y = np.repeat(["cat", "dog", "elk"], 30)
X = MEANS[np.repeat(np.arange(3), 30)] + RNG.normal(size=(90, 4))


@pytest.mark.parametrize("kind", ["LogisticRegression", "LinearSVC", "KNeighborsClassifier", "RidgeClassifier"])
def test_an_estimator_gives_its_own_accuracy_under_its_own_names(kind):
    pytest.importorskip("sklearn")
    from sklearn import linear_model, neighbors, svm

    home = {"LinearSVC": svm, "KNeighborsClassifier": neighbors}.get(kind, linear_model)
    model = getattr(home, kind)().fit(X, Y)
    result = classmargin.audit_model(model, X, Y, bootstrap=0)
    assert result.overall == pytest.approx(model.score(X, Y))
    assert result.class_names == ("cat", "dog", "elk")


def test_two_classes_with_one_column_of_scores():
    svm = pytest.importorskip("sklearn.svm")
    model = svm.LinearSVC().fit(X[:60], Y[:60])
    assert classmargin.audit_model(model, X[:60], Y[:60], bootstrap=0).overall == model.score(X[:60], Y[:60])


@pytest.mark.parametrize("loader", [False, True])
def test_a_module_is_audited_as_it_predicts_and_left_as_it_was(loader):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    inputs, labels = torch.as_tensor(X, dtype=torch.float32), torch.repeat_interleave(torch.arange(3), 30)
    expected = float((model[1](inputs).argmax(1) == labels).float().mean())
    if loader:
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=7)
        result = classmargin.audit_model(model, data, bootstrap=0)
    else:
        result = classmargin.audit_model(model, inputs, labels, bootstrap=0, class_names=["a", "b", "c"])
        assert result.class_names == ("a", "b", "c")
    assert result.overall == pytest.approx(expected)
    assert model.training


def test_other_things_and_unknown_classes_are_refused():
    with pytest.raises(TypeError, match="model must be a scikit-learn estimator or a torch module, got dict"):
        classmargin.audit_model({}, X, Y)
    linear_model = pytest.importorskip("sklearn.linear_model")
    with pytest.raises(ValueError, match="y must hold classes that the estimator knows, got 'cow'"):
        classmargin.audit_model(linear_model.LogisticRegression().fit(X, Y), X[:1], ["cow"])
