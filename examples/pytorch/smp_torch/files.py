"""Model and profile files of SMP, written from a trace and its measurement. Formats: graph/model/FORMAT.md and
profile/FORMAT.md of the tree. JSON strings are YAML too, so nothing else is needed to write them."""

import json

import torch

DTYPES = {
    torch.float32: "float32", torch.int32: "int32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float64: "float64", torch.int64: "int64", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "bool",
}
MAX_DIMS = 6


def _output(name, tensor):
    """Sizes are those of the micro-batch that was measured, so nothing is said per sample."""
    if not isinstance(tensor, torch.Tensor):
        return f"{{name: {json.dumps(name)}, bytes: 0}}"
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or tensor.dim() > MAX_DIMS or 0 in tensor.shape:
        return f"{{name: {json.dumps(name)}, bytes: {tensor.numel() * tensor.element_size()}}}"
    return f"{{name: {json.dumps(name)}, shape: {list(tensor.shape)}, dtype: {dtype}, batched: false}}"


def _input(tensor):
    shape = list(tensor.shape[1:])[:MAX_DIMS]
    return f"{{dtype: {DTYPES.get(tensor.dtype, 'float32')}, shape: {shape}}}"


def _names(items):
    return "[" + ", ".join(json.dumps(item) for item in items) + "]"


class _Weights:
    """Each weight says its size once."""

    def __init__(self, trace):
        self.trace = trace
        self.known = set()

    def entry(self, name):
        if name in self.known:
            return json.dumps(name)
        self.known.add(name)
        value = self.trace.value_of(name)
        return f"{{name: {json.dumps(name)}, bytes: {4 * value.numel()}}}"

    def of(self, op):
        trained = [w for w in op.weights if self.trace.value_of(w).requires_grad]
        return "[" + ", ".join(self.entry(w) for w in trained) + "]"


def model_text(trace, m, name, inputs, targets):
    """inputs: name -> tensor; targets: likewise, which the loss reads."""
    lines = ["smp: 1", f"name: {json.dumps(name)}", "inputs:"]
    lines += [f"  {json.dumps(n)}: {_input(t)}" for n, t in {**inputs, **targets}.items()]
    lines.append("ops:")
    group_of = {op: f"in-place-{i}" for i, ops in enumerate(m.groups) for op in ops}
    weights = _Weights(trace)
    for op in trace.ops:
        cost = m.costs[op]
        lines.append(f"  - op: opaque\n    name: {json.dumps(op.name)}\n    in: {_names(n.name for n in op.reads)}")
        lines.append("    outputs:")
        lines += [f"      - {_output(n.name, m.values[n])}" for n in op.outputs]
        lines.append(f"    weights: {weights.of(op)}")
        if op in group_of:
            lines.append(f"    group: {group_of[op]}")
        if not any(n in m.differentiable for n in op.outputs):
            lines.append("    grad: false")
        lines.append(f"    cost: {{forward_us: {cost.forward_us:.4g}, backward_us: {cost.backward_us:.4g}, "
                     f"stash_bytes: {cost.stash_bytes}}}")
    reads = dict.fromkeys([n.name for n in trace.output if isinstance(n, torch.fx.Node) and n not in trace.constant])
    lines.append(f"  - op: opaque\n    name: loss\n    in: {_names([*reads, *targets])}\n    outputs:\n"
                 f"      - {{name: loss, shape: [], batched: false}}\n    weights: []\n"
                 f"    cost: {{forward_us: {m.loss.forward_us:.4g}, backward_us: {m.loss.backward_us:.4g}}}")
    lines.append("loss: loss")
    return "\n".join(lines) + "\n"


def _bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def profile_text(trace, m, name, microbatch_size, rates, link):
    """rates: bytes per second of the optimizer and of adding gradients; link: list of (bytes, us), or None."""
    lines = ["smp: 1", f"model: {{name: {json.dumps(name)}}}", f"device: {trace.kind.name}", "dtype: fp32",
             f"microbatch_size: {microbatch_size}", f"optimizer_bytes_per_s: {rates[0]:.0f}",
             f"reduce_bytes_per_s: {rates[1]:.0f}", "ops:"]
    counted = set()
    for op in trace.ops:
        cost = m.costs[op]
        trained = [w for w in op.weights if trace.value_of(w).requires_grad]
        counted.update(trained)
        lines.append(
            f"  - {{name: {json.dumps(op.name)}, forward_us: {cost.forward_us:.4g}, backward_us: {cost.backward_us:.4g}, "
            f"backward_input_us: {cost.backward_input_us:.4g}, "
            f"backward_weight_us: {cost.backward_weight_us:.4g}, "
            f"weight_bytes: {sum(4 * trace.value_of(w).numel() for w in trained)}, stash_bytes: {cost.stash_bytes}, "
            f"output_bytes: {_bytes_of(m.values[n] for n in op.outputs)}}}")
    lines.append(f"  - {{name: loss, forward_us: {m.loss.forward_us:.4g}, backward_us: {m.loss.backward_us:.4g}, "
                 f"backward_input_us: {m.loss.backward_us:.4g}, backward_weight_us: 0, output_bytes: 4}}")
    if link:
        latency = link[0][1]
        rate = link[-1][0] / max(link[-1][1] - latency, 1e-3) * 1e6
        lines += ["links:", "  intra_node:", f"    latency_us: {latency:.3f}", f"    bytes_per_s: {rate:.0f}",
                  "    points:"]
        lines += [f"      - {{bytes: {size}, us: {us:.3f}}}" for size, us in link]
    return "\n".join(lines) + "\n"
