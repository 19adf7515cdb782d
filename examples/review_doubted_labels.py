"""Files of doubted samples for FiftyOne and Label Studio: ``python examples/review_doubted_labels.py``."""

import numpy as np

from classmargin.integrations.review_files import doubted_samples, write_fiftyone, write_label_studio

random = np.random.default_rng(0)
names = ["cat", "dog", "owl"]
truth = np.arange(120) % 3
labels = np.where(np.arange(120) % 40 == 7, (truth + 1) % 3, truth)  # three wrong labels
logits = 4.0 * np.eye(3)[truth] + random.normal(size=(120, 3))
probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

files = [f"images/{number:03d}.jpg" for number in range(120)]
doubted = doubted_samples(labels, probabilities, class_names=names, sample_id=files)
write_fiftyone(doubted, "labels.json", names)
write_label_studio(doubted, "tasks.json", url="/data/local-files/?d={sample_id}")
for sample in doubted[:3]:
    print(
        f"{sample.sample_id}: labelled {sample.label} ({sample.label_probability:.3f}), taken for {sample.suggestion}"
    )
