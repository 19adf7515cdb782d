"""scikit-learn's own checks of an estimator; none is excepted."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from classmargin import MR2Classifier


@parametrize_with_checks(
    [
        MR2Classifier(),
        MR2Classifier(mean_margin=2.0, norm_order=3.0, cosine=True),
        MR2Classifier(hidden=(16,), learning_rate=0.02, epochs=20),
    ]
)
def test_estimator_keeps_the_rules_of_scikit_learn(estimator, check):
    check(estimator)
