import numpy as np

from classmargin.evaluation.class_diagnosis import label_issues
from classmargin.evaluation.evidence import score_samples


def issues_of(probabilities, labels):
    scores = score_samples(probabilities, labels, are_logits=False)
    return label_issues(labels, scores, probabilities.shape[1])


def by_definition(probabilities, labels):
    """Confident joint of Northcutt et al., a loop over samples and classes."""
    num_classes = probabilities.shape[1]
    thresholds = [probabilities[labels == k, k].mean() if (labels == k).any() else np.inf for k in range(num_classes)]
    found = []
    for row, label in zip(probabilities, labels, strict=True):
        above = [k for k in range(num_classes) if row[k] >= thresholds[k]]
        found.append(bool(above) and max(above, key=lambda k: (row[k], -k)) != label)
    return np.array(found)


def test_hand_values():
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    labels = np.array([0, 0, 0, 1, 1])
    # Thresholds 0.6 and 0.75: the third sample is class 1 with confidence; the last one is nobody's.
    np.testing.assert_array_equal(issues_of(probabilities, labels), [False, False, True, False, False])


def test_equal_to_the_definition_by_loops(toy):
    np.testing.assert_array_equal(
        issues_of(toy.probabilities, toy.labels), by_definition(toy.probabilities, toy.labels)
    )


def test_flipped_labels_are_found():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 20, 4000)
    probabilities = np.full((4000, 20), 0.1 / 19)
    probabilities[np.arange(4000), true] = 0.9
    noise = rng.uniform(0.9, 1.1, probabilities.shape)
    probabilities = probabilities * noise / (probabilities * noise).sum(axis=1, keepdims=True)
    flipped = rng.random(4000) < 0.06
    labels = np.where(flipped, (true + 1) % 20, true)
    found = issues_of(probabilities, labels)
    assert (found & flipped).sum() / flipped.sum() > 0.95
    assert (found & ~flipped).sum() == 0


def test_absent_classes_are_nobodys_true_class():
    probabilities = np.array([[0.2, 0.1, 0.7], [0.6, 0.3, 0.1]])
    np.testing.assert_array_equal(issues_of(probabilities, np.array([0, 0])), [False, False])
