"""One stage of a plan as a module: a run of the exported graph's operators, with the parameters of the original under
their own names.

It takes what the stage before hands over and returns what the stages behind need, also what it only passes along:
PipelineStage sends to the next stage alone. What is sent is contiguous, either way.
"""

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from .drawing import seed_operator
from .modes import Modes, kept_modes, set_modes
from .trace import TENSOR, map_nodes


class StageModule(nn.Module):
    """received, sent: names of tensors in the order in which they are handed over; draws: node -> its number, of operators
    that draw random numbers. draw: of seed_operator() in the next forward, or None."""

    def __init__(self, trace, ops, received, sent, returned, recompute, first, draws):
        super().__init__()
        self.draw = None
        self._draws = draws
        self.received = received
        self.sent = sent
        self.returned = returned
        self.single = trace.out_spec.is_leaf()
        self._spec = trace.in_spec if first else None
        self._leaves = trace.leaves
        self._inputs = [n.name for n in trace.inputs]
        needed = {n.name for n in _nodes(returned)} | set(sent)
        self._segments = []
        for run, again in _runs(ops, recompute):
            self._segments.append(_Segment(self, trace, run, again, needed, ops))
        for name in [w for op in ops for w in op.weights]:
            _attach(self, name, trace.value_of(name))

    def forward(self, *args, **kwargs):
        values = self._unpack(args, kwargs)
        for segment in self._segments:
            segment.run(self, values)
        if self.returned is not None:
            return self._output(values)
        return tuple(values[name].contiguous() for name in self.sent)

    def _unpack(self, args, kwargs):
        if self._spec is None:
            return {name: _Received.apply(x) if x.requires_grad else x for name, x in zip(self.received, args)}
        flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        if spec != self._spec:
            raise TypeError(f"the module was traced with arguments {self._spec}, got {spec}")
        for given, example in zip(flat, self._leaves, strict=True):
            if isinstance(given, torch.Tensor) != (example is TENSOR) or (example is not TENSOR and given != example):
                raise TypeError(f"the module was traced with {'a tensor' if example is TENSOR else example}, got "
                                f"{'a tensor' if isinstance(given, torch.Tensor) else given}")
        return dict(zip(self._inputs, (v for v in flat if isinstance(v, torch.Tensor))))

    def _output(self, values):
        """The module's output: a tensor, or the tensors in it as a tuple, which the loss puts back in shape. As views:
        others PyTorch detaches in place, which some operator may have saved."""
        flat = tuple(values[n.name].view_as(values[n.name]) for n in _nodes(self.returned))
        return flat[0] if self.single else flat


class _Received(torch.autograd.Function):
    """The same tensor; its gradient is contiguous, as what sends it wants."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.contiguous()


def _nodes(items):
    return [n for n in items or [] if isinstance(n, fx.Node)]


def _runs(ops, recompute):
    """Operators in runs that are all made again in the backward, or all kept."""
    runs = []
    for op in ops:
        again = op in recompute
        if not runs or runs[-1][1] != again:
            runs.append(([], again))
        runs[-1][0].append(op)
    return runs


def _attach(root, name, value):
    """Under its own dotted name."""
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if hasattr(root, leaf):
        return
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    else:
        root.register_buffer(leaf, value)


class _Segment:
    """Operators as one generated function of the tensors that they read; attributes are the stage's own."""

    def __init__(self, stage, trace, ops, again, needed, all_ops):
        made = {n: op for op in ops for n in [op.node, *op.outputs]}
        self.again = again
        self.reads = list(dict.fromkeys(n.name for op in ops for n in op.reads if n not in made))
        later = {n.name for op in all_ops[all_ops.index(ops[-1]) + 1:] for n in op.reads}
        self.makes = [n.name for op in ops for n in dict.fromkeys([op.node, *op.outputs])
                      if n.name in needed | later]
        self.function = _generate(stage, trace, ops, self.reads, self.makes)

    def run(self, stage, values):
        args = [values[name] for name in self.reads]
        if self.again and torch.is_grad_enabled():
            made = checkpoint(self.function, stage, stage.draw, *args, use_reentrant=False)
        else:
            made = self.function(stage, stage.draw, *args)
        values.update(zip(self.makes, made))


def _generate(stage, trace, ops, reads, makes):
    graph = fx.Graph()
    draw = graph.placeholder("draw")
    copy = {name: graph.placeholder(name) for name in reads}
    now, region, grad = Modes(), 0, None

    def switch(modes):
        """Before an operator in other modes than the last one's."""
        nonlocal now, region, grad
        if modes == now:
            return
        if grad is None:  # of who calls: an evaluation has none anywhere
            grad = graph.call_function(torch.is_grad_enabled)
        if modes.region != region and modes.region:
            graph.call_function(torch.clear_autocast_cache)
            region = modes.region
        graph.call_function(set_modes, (modes.casts, grad if modes.grad else False))
        now = modes

    def fetch(node):
        """A parameter, a buffer or a constant of the program: an attribute of the stage."""
        if node.name in copy:
            return
        if node.op == "get_attr":
            name = f"program_{node.target.replace('.', '_')}"
            if not hasattr(stage, name):
                stage.__dict__[name] = getattr(trace.graph_module, node.target)
        else:
            name = trace.parameter.get(node.name) or trace.buffer[node.name]
            _attach(stage, name, trace.value_of(name))
        copy[node.name] = graph.create_node("get_attr", name, (), {}, name=f"w_{node.name}")

    def add(node):
        if node.name in copy:
            return
        if node.op != "call_function":
            fetch(node)
            return
        for source in node.all_input_nodes:
            if source.name not in copy:
                fetch(source)
        switch(trace.modes[node])
        if node in stage._draws:
            graph.call_function(seed_operator, (draw, stage._draws[node]))
        args, kwargs = map_nodes((node.args, node.kwargs), lambda n: copy[n.name])
        copy[node.name] = graph.create_node("call_function", node.target, args, kwargs, name=node.name)

    for op in ops:
        for node in [*op.constants, *dict.fromkeys([op.node, *op.outputs])]:
            add(node)
    graph.output(tuple(copy[name] for name in makes))
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, "<smp_torch stage>", "exec"), scope)  # how torch.fx makes a module of a graph, too
    function = scope["forward"]
    if grad is None:
        return function

    def forward(*args):
        with kept_modes():
            return function(*args)
    return forward
