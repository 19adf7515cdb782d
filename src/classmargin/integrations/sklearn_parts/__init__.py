"""What ``MR2Classifier`` is made of; scikit-learn is imported late here.

``validation`` (what the caller hands over) -> ``fixed_features`` (statistics and margins of a whole training set, sparse rows) ->
``linear_head`` (the head of fixed features at its minimum) or ``minibatch`` (Adam: the hidden layer, and ``partial_fit``).
"""
