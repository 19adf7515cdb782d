import numpy as np
import pytest

from classmargin.evaluation.feature_geometry import weight_angles


def test_hand_values():
    angles = weight_angles(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    np.testing.assert_allclose(angles.norms, [2, 1, np.sqrt(2)])
    np.testing.assert_array_equal(angles.nearest, [2, 2, 0])
    np.testing.assert_allclose(angles.nearest_degrees, [45, 45, 45])
    assert angles.minimum_degrees == pytest.approx(45)


def test_angles_equal_a_loop_over_pairs():
    weight = np.random.default_rng(0).normal(size=(9, 4))
    smallest = min(
        np.degrees(np.arccos(weight[i] @ weight[j] / np.linalg.norm(weight[i]) / np.linalg.norm(weight[j])))
        for i in range(9)
        for j in range(i)
    )
    assert weight_angles(weight).minimum_degrees == pytest.approx(smallest)


def test_angles_do_not_depend_on_lengths():
    weight = np.random.default_rng(0).normal(size=(6, 4))
    scaled = weight * np.arange(1, 7)[:, None]
    np.testing.assert_allclose(weight_angles(scaled).nearest_degrees, weight_angles(weight).nearest_degrees)


def test_simplex_has_the_largest_possible_angle():
    simplex = np.eye(5) - 0.2
    assert weight_angles(simplex).minimum_degrees == pytest.approx(np.degrees(np.arccos(-1 / 4)))


def test_equal_weights_have_angle_zero_and_no_rounding_error():
    assert weight_angles(np.ones((3, 7)) / 3).minimum_degrees == pytest.approx(0, abs=1e-5)


def test_a_weight_of_length_zero_has_no_angle():
    angles = weight_angles(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert angles.nearest[0] == -1
    assert np.isnan(angles.nearest_degrees[0])
    assert angles.minimum_degrees == pytest.approx(90)


def test_one_class_has_no_pair():
    assert np.isnan(weight_angles(np.ones((1, 3))).minimum_degrees)
