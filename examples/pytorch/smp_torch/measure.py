"""What each operator of a trace takes: time forward and backward, what it saves for the backward, and which operators
a change in place ties together.

Operators run one after the other as in a step, all forward and then all backward, but cut off from each other, so that each
is timed by itself and finds the caches as in training; run again and again by itself it would find its data in them. Those
alike in every respect share their samples. In the end all times are scaled by what the whole module takes.
"""

import operator
import statistics
import time

import torch

from .devices import median_us
from .trace import map_nodes, tensors_of, writes_in_schema


class Cost:
    def __init__(self):
        self.forward_us = 0.0
        self.backward_us = 0.0
        self.backward_input_us = 0.0
        self.backward_weight_us = 0.0
        self.stash_bytes = 0


class Measurement:
    """costs: per operator; values: node -> tensor;
    differentiable: nodes whose tensors have gradients; groups: lists of operators that cannot be cut apart;
    loss: Cost of the loss; ratio: what the whole module took over the sum of its operators"""

    def __init__(self):
        self.costs = {}
        self.values = {}
        self.differentiable = set()
        self.groups = []
        self.loss = Cost()
        self.ratio = 1.0


def measure(trace, args, kwargs, loss, budget_s):
    """loss: from the module's output to a scalar. The gradients that the parameters have stay what they are."""
    kept = {p: p.grad for p in trace.module.parameters()}
    try:
        return _measure(trace, args, kwargs, loss, budget_s)
    finally:
        for p, gradient in kept.items():
            p.grad = gradient


def _measure(trace, args, kwargs, loss, budget_s):
    for p in trace.module.parameters():  # adding to gradients is a part of a backward
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    m = Measurement()
    run = _Run(trace, args, kwargs)
    for op in trace.ops:
        m.costs[op] = Cost()
        m.costs[op].stash_bytes = run.op(op)
    m.values = run.values
    m.differentiable = run.grad
    m.groups = run.groups()
    output = trace.out_spec.unflatten([run.leaf(n) if isinstance(n, torch.fx.Node) else n for n in trace.output])
    m.loss = _time_loss(trace.kind, loss, output, budget_s)
    _Passes(run).measure(m.costs, 0.6 * budget_s)
    m.ratio = _scale(trace, args, kwargs, loss, m, budget_s)
    return m


class _Run:
    """Goes through the operators once: values, who has a gradient, who changes what."""

    def __init__(self, trace, args, kwargs):
        self.trace = trace
        self.writes = {}  # operator -> nodes whose tensors it changes
        self.values = {}  # node -> value, of tensors: detached
        self.grad = set()  # nodes whose tensors require a gradient
        self.saved = {}  # storages counted so far; held, so that no address is used twice
        self.touched = {}  # storage -> operators that read or made it
        self.changed_buffers = set()
        self.kept = set()  # storages of weights and buffers: no stash
        self._parent = {op: op for op in trace.ops}
        flat = dict(zip(trace.inputs, tensors_of((args, kwargs or {}))))
        for node in trace.graph_module.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, flat)
            elif node.op == "get_attr":
                self.values[node] = getattr(trace.graph_module, node.target)
            elif node in trace.constant:
                self.values[node] = trace.run_node(node, self.values)

    def _placeholder(self, node, flat):
        trace = self.trace
        if node in flat:
            self.values[node] = flat[node]
        elif node.name in trace.parameter:
            self.values[node] = trace.value_of(trace.parameter[node.name])
            self.kept.add(_storage(self.values[node]))
        elif node.name in trace.buffer:  # a copy: the module's own state stays as it is
            self.values[node] = trace.value_of(trace.buffer[node.name]).clone()
            self.kept.add(_storage(self.values[node]))

    def leaf(self, node):
        value = self.values[node]
        return value.detach().requires_grad_() if node in self.grad else value

    def op(self, op):
        """Its outputs become known; returns the bytes that it saves."""
        node = op.node
        value_of = {**self.values, **{n: self.leaf(n) for n in op.reads}}
        writes = self.writes[op] = self._writes(op, value_of)
        if node.target is operator.getitem:  # a part of so many that it counts by itself: tuples are not sent
            self._join(op, self.trace.op_of[node.args[0]])
        saved = self._forward_once(op, value_of, writes)
        self._note_storages(op, writes)
        return saved

    def _writes(self, op, value_of):
        """Nodes whose tensors the operator changes: what it reads, or a buffer. Batch norm's schema does not say so, so
        it is tried on copies."""
        if not op.buffers and not writes_in_schema(op.node):
            return []
        sources = [n for n in op.node.all_input_nodes if isinstance(value_of[n], torch.Tensor)]
        probe = {**value_of, **{n: value_of[n].detach().clone() for n in sources}}
        versions = {n: probe[n]._version for n in sources}
        with torch.no_grad(), torch.random.fork_rng(devices=self.trace.kind.generators()):
            self.trace.run_node(op.node, probe)
        return [n for n in sources if probe[n]._version != versions[n]]

    def _forward_once(self, op, value_of, writes):
        """Its outputs become known; returns the bytes it saves that nobody saved before."""
        total = 0
        fresh = with_copies(value_of, writes)
        stands_for = {_storage(fresh[n]): _storage(self.values[n]) for n in writes}

        def pack(tensor):
            nonlocal total
            key = _storage(tensor)
            key = stands_for.get(key, key)
            if key not in self.saved and key not in self.kept:
                self.saved[key] = tensor.untyped_storage()
                total += tensor.untyped_storage().nbytes()
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = self.trace.run_node(op.node, fresh)
        real = out
        if writes:  # once more on the tensors themselves, whose storages others share
            with torch.no_grad():
                real = self.trace.run_node(op.node, {n: self.values[n] for n in op.node.all_input_nodes})
        self._set(op.node, out, real)
        for part in op.outputs:
            if part is not op.node:
                self._set(part, out[part.args[1]], real[part.args[1]])
        return total

    def _set(self, node, out, real):
        if isinstance(out, torch.Tensor) and out.requires_grad:
            self.grad.add(node)
        self.values[node] = real.detach() if isinstance(real, torch.Tensor) else real

    def _note_storages(self, op, writes):
        """Who changes a tensor in place has to lie with all that touched it before; of a buffer, with all that ever
        do."""
        nodes = [*op.node.all_input_nodes, *op.outputs]
        touches = {_storage(self.values[n]) for n in nodes
                   if isinstance(self.values[n], torch.Tensor) and n.name not in self.trace.parameter}
        written = {_storage(self.values[n]) for n in writes}
        for key in touches:
            if key in written and key in self.kept:
                self.changed_buffers.add(key)
            if key in written or key in self.changed_buffers:
                for other in self.touched.get(key, []):
                    self._join(op, other)
            self.touched.setdefault(key, []).append(op)

    def _root(self, op):
        while self._parent[op] is not op:
            op = self._parent[op]
        return op

    def _join(self, a, b):
        self._parent[self._root(a)] = self._root(b)

    def groups(self):
        members = {}
        for op in self.trace.ops:
            members.setdefault(self._root(op), []).append(op)
        return [ops for ops in members.values() if len(ops) > 1]


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def _wants(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def with_copies(value_of, writes):
    """With copies of what is changed, which are no leaves."""
    return {**value_of, **{n: value_of[n].clone() for n in writes}} if writes else value_of


class _Passes:
    """Timed passes over all operators, forward and backward."""

    def __init__(self, run):
        self.run = run
        self.trace = run.trace
        self.alike = {op: self._key(op) for op in self.trace.ops}
        self.kind = run.trace.kind
        self.stamps = []  # (operator, "forward" and so on, begin, end) of the pass that runs
        self.samples = {}  # (what makes operators alike, "forward" and so on) -> microseconds

    def measure(self, costs, budget_s):
        start = time.perf_counter()
        self._pass(True)
        turn = 1
        if time.perf_counter() < start + budget_s / 4:  # it was to warm up; of a large module there is no time for that
            self.samples.clear()
            turn = 0
        while turn < 2 or (time.perf_counter() < start + budget_s and turn < 20):
            self._pass(turn % 2 == 0)
            turn += 1
        for op, cost in costs.items():
            for part in ("forward", "backward", "backward_input", "backward_weight"):
                found = self.samples.get((self.alike[op], part))
                if found:
                    setattr(cost, f"{part}_us", statistics.median(found))

    def _key(self, op):
        if self.run.writes[op]:
            return op.name

        def describe(n):
            value = self.run.values.get(n)
            if isinstance(value, torch.Tensor):
                return (tuple(value.shape), value.stride(), value.dtype, n in self.run.grad,
                        n.name in self.trace.parameter)
            return str(value)

        return str((op.node.target, self.trace.modes[op.node][:2], map_nodes((op.node.args, op.node.kwargs), describe)))

    def _note(self, op, part, start):
        self.stamps.append((op, part, start, self.kind.stamp()))

    def _pass(self, whole):
        """whole: backwards as one; else their halves."""
        values = {n: v for n, v in self.run.values.items() if n.op != "call_function" or n in self.trace.constant}
        made = []
        with torch.enable_grad():
            for op in self.trace.ops:
                made.append(self._forward(op, values))
        while made:
            op, out, inputs, weights = made.pop()
            if out and inputs + weights:
                self._backward(op, out, inputs, weights, whole)
        self.kind.synchronize()
        for op, part, start, end in self.stamps:
            self.samples.setdefault((self.alike[op], part), []).append(self.kind.us(start, end))
        self.stamps.clear()

    def _forward(self, op, values):
        node = op.node
        reads = {n: values[n].detach().requires_grad_() if n in self.run.grad else values[n] for n in op.reads}
        writes = self.run.writes[op]
        value_of = {n: reads.get(n, values[n]) for n in node.all_input_nodes}
        value_of = with_copies(value_of, writes)
        start = self.kind.stamp()
        out = self.trace.run_node(node, value_of)
        self._note(op, "forward", start)
        for n in writes:
            values[n] = value_of[n].detach()
        values[node] = out.detach() if isinstance(out, torch.Tensor) else out
        for part in op.outputs:
            if part is not node:
                piece = out[part.args[1]]
                values[part] = piece.detach() if isinstance(piece, torch.Tensor) else piece
        weights = [value_of[n] for n in node.all_input_nodes if n.name in self.trace.parameter]
        return (op, [t for t in tensors_of(out) if t.requires_grad], [v for v in reads.values() if _wants(v)],
                [w for w in weights if _wants(w)])

    def _backward(self, op, out, inputs, weights, whole):
        grads = [torch.ones_like(t) for t in out]

        def backward(part, wanted, retain):
            start = self.kind.stamp()
            torch.autograd.backward(out, grads, retain_graph=retain, inputs=wanted)
            self._note(op, part, start)

        if whole:
            backward("backward", inputs + weights, False)
            return
        if inputs:
            backward("backward_input", inputs, bool(weights))
        if weights:
            backward("backward_weight", weights, False)


def _time_loss(kind, loss, output, budget_s):
    cost = Cost()
    least_s = budget_s / 100
    with torch.enable_grad():
        cost.forward_us = median_us(kind, lambda: loss(output), least_s)
        value = loss(output)
        wanted = [t for t in tensors_of(output) if t.requires_grad]
        if value.requires_grad and wanted:
            cost.backward_us = median_us(
                kind, lambda: torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True), least_s)
            cost.backward_input_us = cost.backward_us
    return cost


def _scale(trace, args, kwargs, loss, m, budget_s):
    """All times become those of the whole, which runs operators without a clock between them."""
    module, whole_module, kind = trace.module, trace.under_ambient(trace.module), trace.kind
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    times = []
    end = time.perf_counter() + 0.3 * budget_s
    with torch.enable_grad():
        while len(times) < 2 or (time.perf_counter() < end and len(times) < 20):
            start = kind.stamp()
            value = loss(whole_module(*args, **(kwargs or {})))
            middle = kind.stamp()
            value.backward()
            end_stamp = kind.stamp()
            kind.synchronize()
            times.append((kind.us(start, middle), kind.us(middle, end_stamp)))
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    whole = [statistics.median(t[i] for t in times[1:]) for i in range(2)]
    costs = [*m.costs.values(), m.loss]
    forward = sum(c.forward_us for c in costs)
    backward = sum(c.backward_us for c in costs)
    for c in costs:
        c.forward_us *= whole[0] / forward
        c.backward_us *= whole[1] / backward if backward else 1
        c.backward_input_us *= whole[1] / backward if backward else 1
        c.backward_weight_us *= whole[1] / backward if backward else 1
    return sum(whole) / (forward + backward)
