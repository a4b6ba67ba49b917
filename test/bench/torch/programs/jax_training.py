"""JAX: a small convolutional network of flax is trained with optax."""
import hashlib
import os

# The fastest algorithm is another one from run to run.
os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")

import jax
import optax
from flax import linen
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

assert jax.devices()[0].platform == "gpu", jax.devices()


class Network(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Conv(16, (3, 3))(x))
        x = linen.avg_pool(x, (2, 2), strides=(2, 2))
        x = linen.relu(linen.Conv(32, (3, 3))(x))
        return linen.Dense(10)(x.reshape(x.shape[0], -1))


network, optimizer = Network(), optax.adam(1e-3)
images = jax.random.normal(jax.random.key(0), (32, 16, 16, 3))
labels = jnp.arange(32) % 10
parameters = network.init(jax.random.key(1), images)
state = optimizer.init(parameters)


@jax.jit
def step(parameters, state):
    def loss(values):
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(values, images), labels).mean()
    value, slopes = jax.value_and_grad(loss)(parameters)
    updates, state = optimizer.update(slopes, state)
    return optax.apply_updates(parameters, updates), state, value


digest = hashlib.sha256()
for _ in range(60):
    parameters, state, value = step(parameters, state)
    digest.update(numpy.asarray(value).tobytes())
for leaf in jax.tree_util.tree_leaves(parameters):
    digest.update(numpy.asarray(leaf).tobytes())
print(digest.hexdigest())
