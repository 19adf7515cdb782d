"""An audit of a model of any framework: ``python examples/audit_any_framework.py``.

The audit needs arrays: labels and logits (or probabilities) and, if you have them, the features and weights of the last layer. Anything
with an ``__array__`` will do. From JAX and Keras, where they are installed, hand over::

    logits = model.predict(images)                       # Keras; probabilities= if the last layer is a softmax
    logits = jax.jit(model.apply)(params, images)        # JAX, Flax
"""

import importlib.util
import os

import numpy as np

import classmargin

random = np.random.default_rng(0)
labels = np.arange(300) % 3
inputs = random.normal(size=(300, 5)).astype(np.float32) + 2.0 * np.eye(3, 5, dtype=np.float32)[labels]
weights = np.eye(3, 5, dtype=np.float32)

scores = {"numpy": inputs @ weights.T}
if importlib.util.find_spec("jax"):
    import jax.numpy as jnp

    scores["jax"] = jnp.asarray(inputs) @ jnp.asarray(weights).T
if importlib.util.find_spec("keras"):
    os.environ.setdefault("KERAS_BACKEND", "torch")  # TensorFlow need not be installed
    import keras

    layer = keras.layers.Dense(3, use_bias=False)
    layer.build((None, 5))
    layer.set_weights([weights.T])
    scores["keras"] = keras.ops.convert_to_numpy(layer(inputs))

for name, logits in scores.items():
    result = classmargin.audit(
        labels, logits=np.asarray(logits), features=inputs, classifier_weight=weights, bootstrap=0
    )
    print(f"{name}: overall {result.overall:.3f}, hard {result.hard:.3f}, worst {result.worst:.3f}")
