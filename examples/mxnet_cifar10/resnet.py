"""ResNet for images of 32 × 32 pixels: the network of He et al. 2016 (arXiv:1603.05027), of 6n + 2 layers."""

from __future__ import annotations

import mxnet as mx

_FILTERS = (16, 32, 64)


def resnet(layers: int) -> mx.sym.Symbol:
    """Return the network with its loss. Raises ValueError unless `layers` is 8, 14, 20 and so on."""
    blocks, rest = divmod(layers - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"ResNet for CIFAR-10 has 6n + 2 layers, such as 20, 32, 56 or 110, not {layers}")
    body = _convolution(mx.sym.Variable("data"), "first", _FILTERS[0], kernel=3, stride=1)
    for stage, filters in enumerate(_FILTERS):
        for block in range(blocks):
            is_smaller = stage > 0 and block == 0
            body = _block(body, f"stage{stage}_block{block}", filters, 2 if is_smaller else 1)
    pooled = mx.sym.Pooling(_activated(body, "last"), global_pool=True, kernel=(8, 8), pool_type="avg")
    scores = mx.sym.FullyConnected(mx.sym.flatten(pooled), num_hidden=10, name="scores")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def _block(data: mx.sym.Symbol, name: str, filters: int, stride: int) -> mx.sym.Symbol:
    """Two convolutions beside a shortcut, each after its normalisation and activation."""
    first = _activated(data, f"{name}_a")
    # With another size, the shortcut is a convolution itself.
    shortcut = _convolution(first, f"{name}_shortcut", filters, kernel=1, stride=stride) if stride > 1 else data
    body = _convolution(first, f"{name}_b", filters, kernel=3, stride=stride)
    body = _convolution(_activated(body, f"{name}_c"), f"{name}_d", filters, kernel=3, stride=1)
    return body + shortcut


def _activated(data: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    normal = mx.sym.BatchNorm(data, fix_gamma=False, eps=2e-5, momentum=0.9, name=f"{name}_normal")
    return mx.sym.Activation(normal, act_type="relu", name=f"{name}_relu")


def _convolution(data: mx.sym.Symbol, name: str, filters: int, kernel: int, stride: int) -> mx.sym.Symbol:
    size = {"kernel": (kernel, kernel), "stride": (stride, stride), "pad": (kernel // 2, kernel // 2)}
    return mx.sym.Convolution(data, num_filter=filters, no_bias=True, name=name, **size)
