"""What stands behind the scikit-learn face; nothing here imports scikit-learn.

``exact_statistics`` (class statistics and margins of a whole training set) -> ``margin_objective`` (loss and gradient of
a head on fixed features) -> ``coordinates`` (in which variables it is minimised) -> ``solver``
(L-BFGS; ``newton`` for small linear heads).
``minibatch`` trains in batches: the hidden layer, and ``partial_fit``.
"""
