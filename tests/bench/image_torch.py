#!/usr/bin/env python3
"""The table of bench_image with PyTorch on one thread: milliseconds of forward and backward.

Usage: image_torch.py [batch [repeats]]
"""
import sys
import time

import torch
from torch.nn import functional

LAYERS = [
    ("batchnorm", torch.nn.BatchNorm2d, 64, 56),
    ("batchnorm", torch.nn.BatchNorm2d, 256, 14),
    ("groupnorm", lambda channels: torch.nn.GroupNorm(32, channels), 64, 56),
    ("groupnorm", lambda channels: torch.nn.GroupNorm(32, channels), 256, 14),
    ("relu", lambda channels: functional.relu, 64, 56),
    ("relu", lambda channels: functional.relu, 256, 14),
    ("add", lambda channels: torch.add, 64, 56),
    ("add", lambda channels: torch.add, 256, 14),
    ("max_pool, 3, 2, 1", lambda channels: torch.nn.MaxPool2d(3, 2, 1), 64, 112),
    ("max_pool, 2", lambda channels: torch.nn.MaxPool2d(2), 64, 112),
    ("avg_pool, 3, 2, 1", lambda channels: torch.nn.AvgPool2d(3, 2, 1), 64, 112),
    ("avg_pool, 2", lambda channels: torch.nn.AvgPool2d(2), 64, 112),
    ("avg_pool, 3, 1, 1", lambda channels: torch.nn.AvgPool2d(3, 1, 1), 64, 56),
    ("global_avg_pool", lambda channels: lambda x: x.mean((2, 3)), 512, 7),
]


def bench(make, channels, size, batch, repeats):
    """The best of both passes, in turns."""
    op = make(channels)
    shape = (batch, channels, size, size)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(2 if op is torch.add else 1)]
    gradient = torch.randn_like(op(*inputs))
    best = [float("inf")] * 2
    for _ in range(repeats):
        for x in inputs:
            x.grad = None
        times = [time.thread_time()]
        y = op(*inputs)
        times.append(time.thread_time())
        y.backward(gradient)
        times.append(time.thread_time())
        best = [min(b, 1e3 * (times[i + 1] - times[i])) for i, b in enumerate(best)]
    return best


def main():
    batch, repeats = (int(a) for a in (sys.argv[1:] + ["8", "20"][len(sys.argv) - 1 :])[:2])
    torch.set_num_threads(1)
    print(f"one thread, best of {repeats}, batch {batch}: ms forward, backward")
    for name, make, channels, size in LAYERS:
        forward, backward = bench(make, channels, size, batch, repeats)
        print(f"{name:50} {channels:4} x {size:3}^2 {forward:8.3f} {backward:8.3f}")


main()
