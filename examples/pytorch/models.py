"""Three models to try smp_torch with, each: module, args, loss_fn and target of one micro-batch.

    python -m smp_torch run models.py:resnet --stages 2
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or channels != out:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, width=32, blocks=(2, 2, 2, 2), classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        layers, channels = [], width
        for i, n in enumerate(blocks):
            for k in range(n):
                out = width * 2 ** i
                layers.append(Block(channels, out, 2 if k == 0 and i > 0 else 1))
                channels = out
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, d, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(d, d, bias)
        self.k = nn.Linear(d, d, bias)
        self.v = nn.Linear(d, d, bias)
        self.o = nn.Linear(d, d, bias)

    def forward(self, x, memory=None, causal=False, bias=None):
        memory = x if memory is None else memory
        b, t, d = x.shape

        def split(y):
            return y.view(b, -1, self.heads, d // self.heads).transpose(1, 2)

        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(memory)), split(self.v(memory)), attn_mask=bias,
                                           is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = Attention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attention(self.norm1(x), causal=True)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Decoder whose head is its embedding."""

    def __init__(self, vocabulary=4096, d=192, layers=6, heads=6, length=128):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d)
        self.positions = nn.Embedding(length, d)
        self.layers = nn.ModuleList(GptBlock(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class T5Layer(nn.Module):
    def __init__(self, d, heads, decoder):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attention = Attention(d, heads, bias=False)
        self.cross = Attention(d, heads, bias=False) if decoder else None
        self.norm3 = nn.RMSNorm(d) if decoder else None
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d, False), nn.ReLU(), nn.Linear(4 * d, d, False))

    def forward(self, x, memory=None, bias=None):
        x = x + self.attention(self.norm1(x), bias=bias)
        if self.cross is not None:
            x = x + self.cross(self.norm3(x), memory)
        return x + self.mlp(self.norm2(x))


class T5(nn.Module):
    """Encoder and decoder with one embedding for both and for the head; every decoder layer reads the encoder, and all
    layers of a kind one table of relative positions."""

    def __init__(self, vocabulary=2048, d=192, layers=4, heads=6, length=64):
        super().__init__()
        self.shared = nn.Embedding(vocabulary, d)
        self.encoder = nn.ModuleList(T5Layer(d, heads, False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(d, heads, True) for _ in range(layers))
        self.encoder_bias = nn.Embedding(2 * length, heads)
        self.decoder_bias = nn.Embedding(2 * length, heads)
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)
        self.head.weight = self.shared.weight
        nn.init.normal_(self.shared.weight, std=0.05)

    @staticmethod
    def relative(table, length):
        position = torch.arange(length)
        return table(position[None, :] - position[:, None] + length).permute(2, 0, 1).unsqueeze(0)

    def forward(self, ids, decoder_ids):
        x = self.shared(ids)
        bias = self.relative(self.encoder_bias, ids.shape[1])
        for layer in self.encoder:
            x = layer(x, bias=bias)
        memory = self.norm1(x)
        length = decoder_ids.shape[1]
        y = self.shared(decoder_ids)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        bias = self.relative(self.decoder_bias, length).masked_fill(future, float("-inf"))
        for layer in self.decoder:
            y = layer(y, memory, bias)
        return self.head(self.norm2(y))


def token_loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def resnet(batch=8, size=32, **options):
    return ResNet(**options), (torch.randn(batch, 3, size, size),), F.cross_entropy, torch.randint(10, (batch,))


def gpt(batch=4, length=128, **options):
    module = Gpt(length=length, **options)
    ids = torch.randint(module.head.out_features, (batch, length + 1))
    return module, (ids[:, :-1],), token_loss, ids[:, 1:].contiguous()


def t5(batch=4, length=64, **options):
    module = T5(length=length, **options)
    ids, target = torch.randint(module.head.out_features, (2, batch, length))
    return module, (ids, torch.roll(target, 1, 1)), token_loss, target
