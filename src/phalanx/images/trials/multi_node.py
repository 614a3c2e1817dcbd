"""Try ChainerMN on two ranks: an allreduce, and the example's network on made-up digits."""

# pyright: reportMissingImports=false

import warnings

warnings.simplefilter("ignore")

import chainer  # noqa: E402
import chainermn  # noqa: E402
import numpy as np  # noqa: E402

world = chainermn.create_communicator("naive")
assert world.allreduce_obj(world.rank + 1) == 3, "the sum over both ranks is wrong"
rng = np.random.RandomState(world.rank)
labels = rng.randint(0, 10, 256).astype(np.int32)
images = np.eye(10, 784, dtype=np.float32)[labels] + rng.normal(0, 0.1, (256, 784)).astype(np.float32)
model = chainer.Sequential(chainer.links.Linear(784, 64), chainer.functions.relu, chainer.links.Linear(64, 10))
optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(alpha=0.01), world).setup(model)
losses = []
for _ in range(50):
    model.cleargrads()
    loss = chainer.functions.softmax_cross_entropy(model(images), labels)
    loss.backward()
    optimizer.update()
    losses.append(float(loss.array))
assert losses[-1] < losses[1] / 2, losses
