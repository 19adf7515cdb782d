"""Files of doubted labels for FiftyOne and Label Studio: ``python examples/review_doubted_labels.py``."""

import numpy as np

import classmargin
from classmargin.integrations.review_files import write_fiftyone, write_label_studio

random = np.random.default_rng(0)
names = ["cat", "dog", "owl"]
truth = np.arange(120) % 3
labels = np.where(np.arange(120) % 40 == 7, (truth + 1) % 3, truth)  # three wrong labels
logits = 4.0 * np.eye(3)[truth] + random.normal(size=(120, 3))

files = [f"images/{number:03d}.jpg" for number in range(120)]
result = classmargin.audit(labels, logits=logits, class_names=names, sample_id=files, bootstrap=0)
write_fiftyone(result, "labels.json")
write_label_studio(result, "tasks.json", url="/data/local-files/?d={sample_id}")
for row in result.samples_of(kind="doubted label", top=3).itertuples():
    print(f"{row.sample_id}: labelled {row.class_name} ({row.true_probability:.3f}), taken for {row.predicted}")
