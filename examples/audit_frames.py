"""Frames in and out of an audit, pandas, polars and fairlearn: ``python examples/audit_frames.py``.

Needs ``pip install 'classmargin[fairlearn,polars]'``.
"""

import numpy as np
import pandas as pd
import polars as pl

import classmargin

random = np.random.default_rng(0)
names = ["cat", "dog", "owl"]
labels = random.integers(3, size=600)
scores = random.standard_normal((600, 3))
scores[np.arange(600), labels] += np.array([0.5, 1.5, 2.5])[labels]  # cats are hard
cameras = random.choice(["north", "south"], 600)

# In: the columns of a frame of scores name the classes, labels may be names.
frame = pd.DataFrame(scores, columns=names).assign(truth=np.array(names)[labels])
result = classmargin.audit(frame["truth"], logits=frame[names], bootstrap=200)
polars_frame = pl.DataFrame(frame.to_dict("list"))
same = classmargin.audit(polars_frame["truth"], logits=polars_frame.select(names), bootstrap=200)
print(f"overall {result.overall:.3f} from pandas, {same.overall:.3f} from polars")

# Out: tables of pandas or polars, and a MetricFrame of fairlearn by class or by any other group.
print(result.by_class[["class_name", "n", "accuracy", "tier"]].to_string(index=False))
print(result.to_polars("by_class").select("class_name", "accuracy").rows())
by_camera = result.to_metric_frame(sensitive_features=cameras)
print(f"accuracy by camera {by_camera.by_group['accuracy'].round(3).to_dict()}")
print(f"difference between cameras {by_camera.difference()['accuracy']:.3f}")
