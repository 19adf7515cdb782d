"""What ``MR2Classifier`` is made of: ``rows``, then ``linear_head`` (fixed features) or ``minibatch`` (Adam)."""
