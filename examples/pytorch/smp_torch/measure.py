"""What each operator of a trace takes: time forward and backward, what it saves for the backward, and which operators
a change in place ties together.

Operators run one after the other on real values, cut off from each other, so that the backward of each can be timed by
itself. Those alike in every respect are timed once. In the end all times are scaled by what the whole module takes.
"""

import operator
import statistics
import time

import torch

from .trace import map_nodes, run_node, tensors_of, writes_in_schema


class Cost:
    def __init__(self):
        self.forward_us = 0.0
        self.backward_us = 0.0
        self.backward_input_us = 0.0
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
    """loss: from the module's output to a scalar."""
    m = Measurement()
    run = _Run(trace, args, kwargs, budget_s)
    for op in trace.ops:
        m.costs[op] = run.op(op)
    m.values = run.values
    m.differentiable = run.grad
    m.groups = run.groups()
    output = trace.out_spec.unflatten([run.leaf(n) for n in trace.output])
    m.loss = _time_loss(loss, output, budget_s)
    m.ratio = _scale(trace.module, args, kwargs, loss, m, budget_s)
    return m


def median_us(call, least_s=0.004, most=30):
    """Median of runs that together take least_s, after one to warm up."""
    call()
    times = []
    end = time.perf_counter() + least_s
    while len(times) < 3 or (time.perf_counter() < end and len(times) < most):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


class _Run:
    def __init__(self, trace, args, kwargs, budget_s):
        self.trace = trace
        self.sample_s = budget_s / (20.0 * max(1, len(trace.ops)))
        self.values = {}  # node -> value, of tensors: detached
        self.grad = set()  # nodes whose tensors require a gradient
        self.known = {}  # what makes operators alike -> Cost
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
                self.values[node] = run_node(node, self.values)

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
        node = op.node
        reads = {n: self.leaf(n) for n in op.reads}
        value_of = {**self.values, **reads}
        writes = self._writes(op, value_of)
        if node.target is operator.getitem:  # a part of so many that it counts by itself: tuples are not sent
            self._join(op, self.trace.op_of[node.args[0]])
        saved = self._forward_once(op, value_of, writes)
        self._note_storages(op, writes)
        key = None if writes else self._key(op)
        cost = self.known.get(key)
        if cost is None:
            cost = self._time(op, value_of, writes)
            if key is not None:
                self.known[key] = cost
        mine = Cost()
        mine.forward_us, mine.backward_us = cost.forward_us, cost.backward_us
        mine.backward_input_us = cost.backward_input_us
        mine.stash_bytes = saved
        return mine

    def _writes(self, op, value_of):
        """Nodes whose tensors the operator changes: what it reads, or a buffer. Batch norm's schema does not say so, so
        it is tried on copies."""
        if not op.buffers and not writes_in_schema(op.node):
            return []
        sources = [n for n in op.node.all_input_nodes if isinstance(value_of[n], torch.Tensor)]
        probe = {**value_of, **{n: value_of[n].detach().clone() for n in sources}}
        versions = {n: probe[n]._version for n in sources}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run_node(op.node, probe)
        return [n for n in sources if probe[n]._version != versions[n]]

    def _fresh(self, value_of, writes):
        """With copies of what is changed, which are no leaves."""
        if not writes:
            return value_of
        return {**value_of, **{n: value_of[n].clone() for n in writes}}

    def _forward_once(self, op, value_of, writes):
        """Its outputs become known; returns the bytes it saves that nobody saved before."""
        total = 0
        fresh = self._fresh(value_of, writes)
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
            out = run_node(op.node, fresh)
        real = out
        if writes:  # once more on the tensors themselves, whose storages others share
            with torch.no_grad():
                real = run_node(op.node, {n: self.values[n] for n in op.node.all_input_nodes})
        self._set(op.node, out, real)
        for part in op.outputs:
            if part is not op.node:
                self._set(part, out[part.args[1]], real[part.args[1]])
        return total

    def _set(self, node, out, real):
        if isinstance(out, torch.Tensor) and out.requires_grad:
            self.grad.add(node)
        self.values[node] = real.detach() if isinstance(real, torch.Tensor) else real

    def _time(self, op, value_of, writes):
        cost = Cost()
        node = op.node
        with torch.enable_grad():
            if writes:
                cost.forward_us = _time_fresh(
                    lambda: self._fresh(value_of, writes), lambda values: run_node(node, values), self.sample_s)
            else:
                cost.forward_us = median_us(lambda: run_node(node, value_of), self.sample_s)
            out = [t for t in tensors_of(run_node(node, self._fresh(value_of, writes))) if t.requires_grad]
        if not out:
            return cost
        inputs = [value_of[n] for n in op.reads if _wants(value_of[n])]
        weights = [value_of[n] for n in node.all_input_nodes
                   if n.name in self.trace.parameter and _wants(value_of[n])]
        if not inputs + weights:
            return cost
        grads = [torch.ones_like(t) for t in out]

        def backward(wanted):
            return torch.autograd.grad(out, wanted, grads, retain_graph=True, allow_unused=True)

        cost.backward_us = median_us(lambda: backward(inputs + weights), self.sample_s)
        if inputs and weights:
            cost.backward_input_us = min(cost.backward_us, median_us(lambda: backward(inputs), self.sample_s))
        elif inputs:
            cost.backward_input_us = cost.backward_us
        return cost

    def _key(self, op):
        def describe(n):
            value = self.values.get(n)
            if isinstance(value, torch.Tensor):
                return (tuple(value.shape), value.stride(), value.dtype, n in self.grad, n.name in self.trace.parameter)
            return str(value)

        return str((op.node.target, map_nodes((op.node.args, op.node.kwargs), describe)))

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


def _time_fresh(prepare, call, least_s):
    """As median_us, of a call that spoils its arguments."""
    times = []
    end = time.perf_counter() + least_s
    while len(times) < 4 or (time.perf_counter() < end and len(times) < 30):
        values = prepare()
        start = time.perf_counter()
        call(values)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[1:])


def _time_loss(loss, output, budget_s):
    cost = Cost()
    least_s = budget_s / 100
    with torch.enable_grad():
        cost.forward_us = median_us(lambda: loss(output), least_s)
        value = loss(output)
        wanted = [t for t in tensors_of(output) if t.requires_grad]
        if value.requires_grad and wanted:
            cost.backward_us = median_us(
                lambda: torch.autograd.grad(value, wanted, retain_graph=True, allow_unused=True), least_s)
            cost.backward_input_us = cost.backward_us
    return cost


def _scale(module, args, kwargs, loss, m, budget_s):
    """Operators one by one find other caches than those of a step: all times become those of the whole."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    times = []
    end = time.perf_counter() + 0.3 * budget_s
    with torch.enable_grad():
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 20):
            start = time.perf_counter()
            value = loss(module(*args, **(kwargs or {})))
            middle = time.perf_counter()
            torch.autograd.grad(value, parameters, allow_unused=True)
            times.append((middle - start, time.perf_counter() - middle))
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    whole = [1e6 * statistics.median(t[i] for t in times[1:]) for i in range(2)]
    costs = [*m.costs.values(), m.loss]
    forward = sum(c.forward_us for c in costs)
    backward = sum(c.backward_us for c in costs)
    for c in costs:
        c.forward_us *= whole[0] / forward
        c.backward_us *= whole[1] / backward if backward else 1
        c.backward_input_us *= whole[1] / backward if backward else 1
    return sum(whole) / (forward + backward)
