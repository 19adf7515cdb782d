"""What stands behind ``MR2Classifier``; nothing here imports scikit-learn at once.

``validation`` (what the caller hands over) -> ``fixed_features`` (statistics and margins of a whole training set, sparse rows) ->
``linear_head`` (the head of fixed features at its minimum) or ``minibatch`` (Adam: the hidden layer, and ``partial_fit``).
"""
