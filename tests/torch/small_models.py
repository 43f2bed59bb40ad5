"""The models of examples/pytorch/models.py, small."""

import models


def small(name):
    if name == "resnet":
        return models.resnet(batch=4, size=16, width=8, blocks=(1, 1, 2, 1))
    if name == "gpt":
        return models.gpt(batch=2, length=16, vocabulary=64, d=32, layers=4, heads=4)
    return models.t5(batch=2, length=12, vocabulary=64, d=32, layers=3, heads=4)
