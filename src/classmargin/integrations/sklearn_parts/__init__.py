"""What ``MR2Classifier`` is made of; scikit-learn is imported late here.

``rows`` (what the caller hands over) -> ``linear_head`` (the head of fixed features at its minimum) or ``minibatch`` (Adam: the hidden
layer, and ``partial_fit``).
"""
