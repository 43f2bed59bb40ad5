#!/usr/bin/env python3
"""Writes torch_values.txt: outputs and gradients of every operator as PyTorch computes them.

Made with PyTorch 2.15, from 2.4 on any will do; tests/graph/ops/test_torch.c reads the result.

    python3 tests/data/make_torch_values.py > tests/data/torch_values.txt

For each case: a model text with one op named "op", then its inputs, weights, output (several one
behind the other), the gradient put into the output, and the gradients PyTorch returns. A case of
several micro-batches says `microbatches`; each has inputs, output and gradients of its own, the
weights stand with the first one, their gradients, added up, at the end. The gradient of a running
statistic is what all of them changed it by. Dropout is left out: its random numbers are SMP's own.
Everything is computed in double from values rounded to float, and written with nine digits, which
is what identifies a float.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20240501)


def rand(*shape, scale=1.0):
    """Float values held in doubles."""
    return (scale * torch.randn(shape)).float().double()


def write(key, index, tensor):
    flat = tensor.detach().reshape(-1)
    form = "%d" if not tensor.is_floating_point() else "%.9g"
    print(key, index, flat.numel(), *(form % v for v in flat.tolist()))


def write_model(name, batch, op, inputs, made="y", microbatches=1):
    names = "abcd"[: len(inputs)]
    lines = ["smp: 1", f"name: {name}", "inputs:"]
    for letter, x in zip(names, inputs):
        dtype = "float32" if x.is_floating_point() else "int32"
        lines.append(f"  {letter}: {{dtype: {dtype}, shape: {list(x.shape[1:])}}}")
    lines += ["ops:", f"  - {{op: {op}, name: op, in: [{', '.join(names)}], out: {made}}}"]
    print(f"case {name}\nbatch {batch}")
    if microbatches > 1:
        print(f"microbatches {microbatches}")
    print(f"yaml {len(lines)}")
    print("\n".join(lines))


def case(name, batch, op, function, inputs, params=()):
    """`inputs`, `params`: tensors in the op's order; inputs have the batch dimension first."""
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    params = [p.requires_grad_() for p in params]
    outs = function(*inputs, *params)
    outs = outs if isinstance(outs, tuple) else (outs,)
    douts = [rand(*out.shape) for out in outs]
    torch.autograd.backward(outs, douts)
    made = "y" if len(outs) == 1 else f"[{', '.join('yzuv'[: len(outs)])}]"
    write_model(name, batch, op, inputs, made)
    for i, x in enumerate(inputs):
        write("in", i, x)
    for i, p in enumerate(params):
        write("param", i, p)
    write("out", 0, torch.cat([out.reshape(-1) for out in outs]))
    write("dout", 0, torch.cat([dout.reshape(-1) for dout in douts]))
    for i, x in enumerate(inputs):
        if x.is_floating_point():
            write("din", i, x.grad)
    for i, p in enumerate(params):
        write("dparam", i, p.grad)
    print("end")


def batchnorm(name, batch, op, norm, shape, microbatches):
    """`norm`: a module in training mode, whose statistics have a past."""
    norm = norm.double()
    weights = [norm.weight, norm.bias]
    statistics = [norm.running_mean, norm.running_var]
    for value, start in zip(weights + statistics, [0, 0, 0, 2]):
        value.data.copy_((start + rand(*value.shape, scale=0.5)).float())
    before = [value.clone() for value in statistics]
    for m in range(microbatches):
        x = rand(batch, *shape).add_(m).float().double().requires_grad_()
        out = norm(x)
        dout = rand(*out.shape)
        out.backward(dout)
        if m == 0:
            write_model(name, batch, op, [x], microbatches=microbatches)
        write("in", 0, x)
        for i, p in enumerate(weights + before if m == 0 else []):
            write("param", i, p)
        write("out", 0, out)
        write("dout", 0, dout)
        write("din", 0, x.grad)
    changes = [value - old for value, old in zip(statistics, before)]
    for i, change in enumerate([w.grad for w in weights] + changes):
        write("dparam", i, change)
    print("end")


def heads(x, n):
    batch, rows, d = x.shape
    return x.view(batch, rows, n, d // n).transpose(1, 2)


def slopes(n):
    """Of ALiBi, as its authors' get_slopes has them."""
    if n & (n - 1) == 0:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]
    lower = 2 ** math.floor(math.log2(n))
    return slopes(lower) + slopes(2 * lower)[0::2][:n - lower]


def alibi(n, rows):
    distance = torch.arange(rows)[None, :] - torch.arange(rows)[:, None]
    return -torch.tensor(slopes(n)).double()[:, None, None] * distance.abs()


def t5_bias(weight, rows, both, max_distance):
    """As T5's _relative_position_bucket and compute_bias have it."""
    distance = torch.arange(rows)[None, :] - torch.arange(rows)[:, None]
    buckets, first = weight.shape[0], 0
    if both:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    single = buckets // 2
    wide = single + (torch.log(distance.float() / single) / math.log(max_distance / single)
                     * (buckets - single)).clamp(min=-1).long()
    wide = wide.clamp(max=buckets - 1)
    return weight[first + torch.where(distance < single, distance, wide)].permute(2, 0, 1)


def attention(q, k, v, n, causal, counts=None, window=None, bias=0, scale=None, cap=0):
    """counts: (batch, keys), 0 where a key is padding; bias: added to the scores; cap: of them."""
    q = q if scale is None else q * scale * (q.shape[2] // n) ** 0.5
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen if counts is None else seen & (counts != 0)[:, None, None, :]
    seen = seen if window is None else seen.triu(1 - window)
    mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, float("-inf")) + bias
    if cap:
        scores = heads(q, n) @ heads(k, n).transpose(2, 3) / (q.shape[2] // n) ** 0.5
        out = (cap * torch.tanh(scores / cap) + mask).softmax(3) @ heads(v, n)
    else:
        out = F.scaled_dot_product_attention(heads(q, n), heads(k, n), heads(v, n), mask)
    return out.transpose(1, 2).reshape(q.shape)


def grouped(q, k, v, n, kv_heads, causal):
    """Key heads that several heads read, once for each of them."""
    k, v = (heads(x, kv_heads).repeat_interleave(n // kv_heads, 1).transpose(1, 2).flatten(2)
            for x in (k, v))
    return attention(q, k, v, n, causal)


def packed(x, n, causal, **more):
    return attention(*x.split(x.shape[2] // 3, dim=2), n, causal, **more)


def cross_entropy(logits, targets, smoothing=0.0):
    rows = logits.reshape(-1, logits.shape[-1])
    return F.cross_entropy(rows, targets.reshape(-1), ignore_index=-1, label_smoothing=smoothing)


def patches(image, patch):
    if image.dim() == 3:
        image = image[:, None]
    return F.unfold(image, patch, stride=patch).transpose(1, 2)


def rope(x, n, frequencies=None):
    """frequencies: of pairs; None: 1e4^(-2 pair / width)."""
    x = x.reshape(*x.shape[:2], n, -1)
    rows, width = x.shape[1], x.shape[3]
    if frequencies is None:
        frequencies = 1e4 ** (-torch.arange(0, width, 2).double() / width)
    angles = torch.outer(torch.arange(rows).double(), frequencies).repeat(1, 2)[:, None]
    first, second = x.chunk(2, -1)
    return (x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).flatten(2)


def rope_interleaved(x, n, frequencies=None):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:2], n, -1, 2))
    rows, width = x.shape[1], pairs.shape[3]
    if frequencies is None:
        frequencies = 1e4 ** (-torch.arange(width).double() / width)
    angles = torch.outer(torch.arange(rows).double(), frequencies)[:, None]
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)
def conv2d(**how):
    return lambda x, w, b=None: F.conv2d(x, w, b, **how)


def main():
    print(f"# PyTorch {torch.__version__}, written by make_torch_values.py")
    ids = torch.tensor([[0, 4, 4, 2], [4, 1, 0, 2]])
    case("embedding", 2, "embedding, rows: 5, features: 3", F.embedding, [ids], [rand(5, 3)])
    case("position_embedding", 3, "position_embedding", lambda x, w: x + w, [rand(3, 4, 5)],
         [rand(4, 5)])
    case("linear", 2, "linear, features: 5", F.linear, [rand(2, 3, 7)], [rand(5, 7), rand(5)])
    case("linear_no_bias", 4, "linear, features: 3, bias: false", F.linear, [rand(4, 6)],
         [rand(3, 6)])
    case("conv2d", 2, "conv2d, channels: 4, kernel: 3, padding: 1", conv2d(padding=1),
         [rand(2, 3, 5, 6)], [rand(4, 3, 3, 3), rand(4)])
    case("conv2d_pairs", 2, "conv2d, channels: 3, kernel: [2, 3], stride: [2, 1], padding: [1, 2], "
         "dilation: [1, 2], bias: false", conv2d(stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
         [rand(2, 2, 5, 6)], [rand(3, 2, 2, 3)])
    case("conv2d_groups", 2, "conv2d, channels: 6, kernel: 2, groups: 2, stride: 2",
         conv2d(groups=2, stride=2), [rand(2, 4, 4, 5)], [rand(6, 2, 2, 2), rand(6)])
    case("layernorm", 2, "layernorm", lambda x, w, b: F.layer_norm(x, (19,), w, b),
         [rand(2, 3, 19)], [rand(19), rand(19)])
    case("layernorm_eps", 2, "layernorm, eps: 0.1",
         lambda x, w, b: F.layer_norm(x, (4,), w, b, 0.1), [rand(2, 4)], [rand(4), rand(4)])
    case("rmsnorm", 2, "rmsnorm", lambda x, w: F.rms_norm(x, (19,), w, 1e-5), [rand(2, 3, 19)],
         [rand(19)])
    case("rmsnorm_eps", 2, "rmsnorm, eps: 0.1", lambda x, w: F.rms_norm(x, (4,), w, 0.1),
         [rand(2, 4)], [rand(4)])
    case("rope", 2, "rope, heads: 2", lambda x: rope(x, 2), [rand(2, 7, 12)])
    case("rope_packed", 1, "rope, heads: 3, rotated: 2, base: 100",
         lambda x: torch.cat([rope(x[..., :16], 2, 100.0 ** (-torch.arange(0, 8, 2).double() / 8)), x[..., 16:]], -1), [rand(1, 9, 24)])
    case("rope_interleaved", 2, "rope, heads: 2, interleaved: true",
         lambda x: rope_interleaved(x, 2), [rand(2, 7, 12)])
    case("groupnorm", 3, "groupnorm, groups: 2", lambda x, w, b: F.group_norm(x, 2, w, b),
         [rand(3, 6, 2, 5)], [rand(6), rand(6)])
    case("groupnorm_flat", 2, "groupnorm, groups: 3, eps: 0.1",
         lambda x, w, b: F.group_norm(x, 3, w, b, 0.1), [rand(2, 12)], [rand(12), rand(12)])
    case("gelu_tanh", 2, "gelu", lambda x: F.gelu(x, approximate="tanh"), [rand(2, 21, scale=2)])
    case("gelu_erf", 2, "gelu, approximate: none", F.gelu, [rand(2, 21, scale=2)])
    case("relu", 2, "relu", F.relu, [rand(2, 9)])
    case("tanh", 2, "tanh", torch.tanh, [rand(2, 9, scale=2)])
    case("softmax", 2, "softmax", lambda x: F.softmax(x, -1), [rand(2, 3, 7, scale=3)])
    case("softmax_large", 2, "softmax", lambda x: F.softmax(x, -1), [rand(2, 7, scale=1000)])
    case("attention_packed_causal", 2, "attention, heads: 2, causal: true",
         lambda x: packed(x, 2, True), [rand(2, 6, 24)])
    case("attention_packed", 1, "attention, heads: 3", lambda x: packed(x, 3, False),
         [rand(1, 5, 27)])
    case("attention_three", 2, "attention, heads: 2", lambda q, k, v: attention(q, k, v, 2, False),
         [rand(2, 3, 8), rand(2, 5, 8), rand(2, 5, 8)])
    case("attention_grouped", 2, "attention, heads: 4, kv_heads: 2, causal: true",
         lambda q, k, v: grouped(q, k, v, 4, 2, True), [rand(2, 5, 12), rand(2, 5, 6), rand(2, 5, 6)])
    case("attention_multi_query", 2, "attention, heads: 3, kv_heads: 1",
         lambda q, k, v: grouped(q, k, v, 3, 1, False), [rand(2, 3, 12), rand(2, 5, 4), rand(2, 5, 4)])
    counts = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]])
    case("attention_masked", 2, "attention, heads: 2", lambda x, m: packed(x, 2, False, counts=m),
         [rand(2, 5, 12), counts])
    case("attention_masked_causal", 2, "attention, heads: 2, causal: true",
         lambda x, m: packed(x, 2, True, counts=m), [rand(2, 5, 12), counts])
    case("attention_masked_three", 2, "attention, heads: 2",
         lambda q, k, v, m: attention(q, k, v, 2, False, counts=m),
         [rand(2, 3, 8), rand(2, 5, 8), rand(2, 5, 8), counts])
    case("attention_window", 2, "attention, heads: 2, causal: true, window: 3",
         lambda x: packed(x, 2, True, window=3), [rand(2, 7, 12)])
    case("attention_alibi", 2, "attention, heads: 4, causal: true, alibi: true",
         lambda x: packed(x, 4, True, bias=alibi(4, 6)), [rand(2, 6, 24)])
    case("attention_alibi_odd", 2, "attention, heads: 6, alibi: true",
         lambda x: packed(x, 6, False, bias=alibi(6, 5)), [rand(2, 5, 36)])
    case("attention_t5", 1, "attention, heads: 2, buckets: 8, max_distance: 20, scale: 1",
         lambda x, w: packed(x, 2, False, bias=t5_bias(w, 24, True, 20), scale=1),
         [rand(1, 24, 12)], [rand(8, 2)])
    case("attention_t5_causal", 1, "attention, heads: 2, causal: true, buckets: 8, max_distance: 16",
         lambda x, w: packed(x, 2, True, bias=t5_bias(w, 24, False, 16)), [rand(1, 24, 12)],
         [rand(8, 2)])
    case("add", 2, "add", torch.add, [rand(2, 3, 4), rand(2, 3, 4)])
    case("mul", 2, "mul", torch.mul, [rand(2, 3, 4), rand(2, 3, 4)])
    case("flatten", 2, "flatten", lambda x: x.flatten(1), [rand(2, 3, 2, 2)])
    case("reshape", 2, "reshape, shape: [4, -1]", lambda x: x.reshape(2, 4, -1), [rand(2, 3, 8)])
    case("concat_last", 2, "concat", lambda a, b: torch.cat([a, b], -1),
         [rand(2, 3, 2), rand(2, 3, 4)])
    case("concat_first", 2, "concat, axis: 0", lambda a, b, c: torch.cat([a, b, c], 1),
         [rand(2, 1, 3), rand(2, 2, 3), rand(2, 4, 3)])
    case("slice_last", 2, "slice, begin: 1, end: -2", lambda x: x[..., 1:-2], [rand(2, 3, 6)])
    case("slice_first", 2, "slice, axis: 0, begin: -3", lambda x: x[:, -3:], [rand(2, 5, 4)])
    case("transpose", 2, "transpose, axes: [2, 0, 1]", lambda x: x.permute(0, 3, 1, 2),
         [rand(2, 3, 4, 5)])
    case("sum_last", 2, "sum", lambda x: x.sum(-1), [rand(2, 4, 19)])
    case("sum_middle", 2, "sum, axis: 1", lambda x: x.sum(2), [rand(2, 3, 5, 4)])
    case("mean_last", 2, "mean", lambda x: x.mean(-1), [rand(2, 4, 19)])
    case("mean_first", 2, "mean, axis: -3", lambda x: x.mean(1), [rand(2, 3, 5, 4)])
    case("upsample", 2, "upsample, factor: 3",
         lambda x: F.interpolate(x, scale_factor=3, mode="nearest"), [rand(2, 2, 3, 4)])
    case("global_avg_pool", 2, "global_avg_pool", lambda x: x.mean((2, 3)), [rand(2, 4, 3, 5)])
    case("max_pool", 2, "max_pool, kernel: 3, stride: 2, padding: 1",
         lambda x: F.max_pool2d(x, 3, 2, 1), [rand(2, 2, 6, 7)])
    case("max_pool_ties", 2, "max_pool, kernel: 2, stride: 1", lambda x: F.max_pool2d(x, 2, 1),
         [rand(2, 2, 5, 5).round()])
    case("avg_pool", 2, "avg_pool, kernel: 3, stride: 2, padding: 1",
         lambda x: F.avg_pool2d(x, 3, 2, 1), [rand(2, 2, 6, 7)])
    case("avg_pool_default", 2, "avg_pool, kernel: 2", lambda x: F.avg_pool2d(x, 2),
         [rand(2, 2, 5, 4)])
    case("patchify", 2, "patchify, patch: 2", lambda x: patches(x, 2), [rand(2, 4, 6)])
    case("patchify_channels", 2, "patchify, patch: 3", lambda x: patches(x, 3), [rand(2, 2, 6, 3)])
    case("mean_pool", 2, "mean_pool", lambda x: x.mean(1), [rand(2, 5, 6)])
    targets = torch.tensor([[3, -1, 0], [7, 7, -1]])
    case("cross_entropy", 2, "cross_entropy", cross_entropy, [rand(2, 3, 8, scale=3), targets])
    case("cross_entropy_large", 4, "cross_entropy", cross_entropy,
         [rand(4, 5, scale=1000), torch.tensor([0, 4, 2, 2])])
    case("mse", 3, "mse", F.mse_loss, [rand(3, 7), rand(3, 7)])
    case("split_even", 2, "split", lambda x: x.chunk(3, -1), [rand(2, 3, 6)])
    case("split_sizes", 2, "split, axis: 0, sizes: [1, 4, 2]", lambda x: x.split([1, 4, 2], 1),
         [rand(2, 7, 3)])
    batchnorm("batchnorm", 4, "batchnorm", nn.BatchNorm2d(3), (3, 4, 5), 1)
    batchnorm("batchnorm_step", 2, "batchnorm, momentum: 0.3, eps: 0.01",
              nn.BatchNorm2d(2, momentum=0.3, eps=0.01), (2, 3, 3), 4)
    batchnorm("batchnorm_features", 5, "batchnorm", nn.BatchNorm1d(6), (6,), 2)
    case("silu", 2, "silu", F.silu, [rand(2, 21, scale=3)])
    case("sigmoid", 2, "sigmoid", torch.sigmoid, [rand(2, 21, scale=3)])
    case("sub", 2, "sub", torch.sub, [rand(2, 3, 4), rand(2, 3, 4)])
    case("scale", 2, "scale, factor: -0.3", lambda x: -0.3 * x, [rand(2, 3, 4)])
    case("bce_with_logits", 3, "bce_with_logits", F.binary_cross_entropy_with_logits,
         [rand(3, 7, scale=4), torch.rand(3, 7).double()])
    case("bce_with_logits_large", 2, "bce_with_logits", F.binary_cross_entropy_with_logits,
         [rand(2, 9, scale=1000), torch.randint(0, 2, (2, 9)).double()])
    case("cross_entropy_smoothed", 2, "cross_entropy, label_smoothing: 0.1",
         lambda x, t: cross_entropy(x, t, 0.1), [rand(2, 3, 8, scale=3), targets])
    case("embedding_padding", 2, "embedding, rows: 5, features: 3, padding_idx: 4",
         lambda x, w: F.embedding(x, w, padding_idx=4), [ids], [rand(5, 3)])
    case("rmsnorm_offset", 2, "rmsnorm, offset: 1", lambda x, w: F.rms_norm(x, (9,), 1 + w, 1e-5),
         [rand(2, 3, 9)], [rand(9)])
    case("attention_softcap", 2, "attention, heads: 2, causal: true, softcap: 1.5",
         lambda q, k, v: attention(q, k, v, 2, True, cap=1.5), [rand(2, 5, 6, scale=2) for _ in range(3)])
    case("mul_rows", 2, "mul_rows", torch.mul, [rand(2, 3, 4), rand(2, 3, 1)])


if __name__ == "__main__":
    main()
