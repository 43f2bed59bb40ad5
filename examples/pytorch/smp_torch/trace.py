"""A module as a graph of operators, by torch.export: what `profile` measures and `build` cuts.

The graph is that before autograd, in the modes that the module's parts are in (`train()`, `eval()`), so each operator runs
and differentiates as it does in the module. Three
kinds of nodes are no operators of their own: parts of a tuple (`getitem`) are outputs of the operator that makes it;
what follows from constants and buffers alone (masks, positions) is made again in every stage that reads it, changes in
place and all; and checks are left out. Regions of autocast and no_grad are modes of the operators in them.
"""

import contextlib
import dataclasses
import operator

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree

from .devices import device_of, kind_of
from .functions import kept_whole, put_back
from .modes import MARKS, modes_now, read_modes, regions_flat, under, without_autocast

TENSOR = object()  # among the leaves of the example: those that are given anew
MAX_OUTPUTS = 32  # of an operator of a model file


class Op:
    """One operator: `node` of the exported graph, the tensors that it reads and makes, by name."""

    def __init__(self, name, node):
        self.name = name
        self.node = node
        self.reads = []  # tensors: model inputs, or outputs of earlier operators
        self.constants = []  # nodes made again wherever this one runs, in order
        self.outputs = [node]  # nodes that stand for its tensors
        self.weights = []  # names of parameters, shared ones by their first name
        self.buffers = []
        self.mutates_buffer = False


class Trace:
    """ops in order; inputs: placeholder nodes of the module's arguments; output: nodes, and the shape they are put in"""

    def __init__(self, module, args, kwargs=None):
        self.module = module
        self.kind = kind_of(device_of(module))
        self.ambient = modes_now()
        with torch.enable_grad(), kept_whole(module), regions_flat(), _dataclasses_known(module, (args, kwargs)):
            self.program = torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
        self.leaves = [TENSOR if isinstance(x, torch.Tensor) else x
                       for x in _pytree.tree_leaves((tuple(args), dict(kwargs or {})))]
        self.graph_module = self.program.graph_module
        put_back(self.graph_module)
        self.modes = read_modes(self.graph_module.graph, self.ambient)
        self._read_signature()
        self._read_ops()

    def _read_signature(self):
        first = {}  # id of a parameter -> its first name
        owner = {}
        for name, value in self.module.named_parameters(remove_duplicate=False):
            first.setdefault(id(value), name)
            owner[name] = first[id(value)]
        self.parameter = {}  # node name -> parameter name
        self.buffer = {}  # node name -> buffer or constant name
        self.inputs = []
        signature = self.program.graph_signature
        placeholders = {n.name: n for n in self.graph_module.graph.nodes if n.op == "placeholder"}
        for spec in signature.input_specs:
            name, kind = spec.arg.name, spec.kind.name
            if kind == "PARAMETER":
                self.parameter[name] = owner[spec.target]
            elif kind in ("BUFFER", "CONSTANT_TENSOR"):
                self.buffer[name] = spec.target
            elif kind == "USER_INPUT":
                node = placeholders.get(name)  # numbers among the arguments are constants of the graph
                if node is not None and isinstance(node.meta.get("val"), torch.Tensor):
                    self.inputs.append(node)
            else:
                raise ValueError(f"input '{name}' of the exported module is a {kind}, which cannot be split")
        self.in_spec = self.program.call_spec.in_spec
        self.out_spec = self.program.call_spec.out_spec

    def value_of(self, name):
        """The parameter, buffer or constant of that name, as the module has it."""
        if name in self.program.constants:
            return self.program.constants[name]
        path, _, leaf = name.rpartition(".")
        return getattr(self.module.get_submodule(path), leaf)

    def _read_ops(self):
        self.ops = []
        op_of = {}  # node -> the operator that makes its tensor
        self.constant = {}  # node -> constant nodes that it needs, in order
        self._find_constants()
        for node in self.graph_module.graph.nodes:
            if node.op == "output":
                self.output = list(node.args[0])
            elif node.op == "get_attr":
                self.constant[node] = [node]
            elif node.op == "call_function" and not _is_aside(node):
                self._read_call(node, op_of)
        self.op_of = op_of

    def _read_call(self, node, op_of):
        if node.target is operator.getitem and node.args[0] in op_of:
            self._read_part(node, op_of)
            return
        sources = node.all_input_nodes
        if node in self._constants:
            made = _merge(self.constant[s] for s in sources if s in self.constant) + [node]
            self.constant[node] = made
            for other in self.constant if writes_in_schema(node) else ():  # what is changed in place, and its views
                if self._base[other] is self._base[node]:
                    self.constant[other] = sorted(_merge([self.constant[other], made]), key=self._place.__getitem__)
            return
        op = Op(_op_name(node), node)
        for source in sources:
            if source.name in self.parameter:
                weight = self.parameter[source.name]
                if weight not in op.weights:
                    op.weights.append(weight)
            elif source.name in self.buffer:
                op.buffers.append(self.buffer[source.name])
            elif source in self.constant:
                op.constants = _merge([op.constants, self.constant[source]])
            elif source not in op.reads:
                op.reads.append(source)
        for constant in op.constants:
            for source in constant.all_input_nodes:
                if source.name in self.buffer and self.buffer[source.name] not in op.buffers:
                    op.buffers.append(self.buffer[source.name])
        op.mutates_buffer = _mutates_buffer(node, self.buffer)
        op_of[node] = op
        self.ops.append(op)

    def _read_part(self, node, op_of):
        op = op_of[node.args[0]]
        parts = [n for n in op.node.users if n.target is operator.getitem]
        if len({n.args[1] for n in parts}) > MAX_OUTPUTS or op.node.target is operator.getitem:
            own = Op(_op_name(node), node)
            own.reads = [op.node]
            op_of[node] = own
            self.ops.append(own)
            return
        if op.outputs == [op.node]:
            op.outputs = []
        op.outputs.append(node)
        op_of[node] = op

    def _find_constants(self):
        """Nodes that follow from constants and buffers alone; those that only constants change in place, too."""
        nodes = [n for n in self.graph_module.graph.nodes if n.op in ("get_attr", "call_function") and not _is_aside(n)]
        self._place = {n: i for i, n in enumerate(nodes)}
        self._base = {}  # node -> the node that made the memory it lies in
        for node in nodes:
            shared = [n for n in aliased_by(node) if n in self._base]
            self._base[node] = self._base[shared[0]] if shared else node
        changed = set()  # bases that others than constants change
        while True:
            self._constants = set()
            for node in nodes:
                if node.op == "get_attr" or self._is_constant(node, changed):
                    self._constants.add(node)
            more = {self._base[n] for node in nodes if node not in self._constants for n in written_by(node)
                    if n in self._constants} - changed
            if not more:
                return
            changed |= more

    def _is_constant(self, node, changed):
        if self._base[node] in changed:
            return False
        sources = node.all_input_nodes
        if any(s not in self._constants and s.name not in self.buffer for s in sources):
            return False
        if any(s.name in self.buffer for s in written_by(node)):
            return False
        return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())

    def fake_values(self):
        """node -> its value without data: shapes, types and whether it requires a gradient."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        values = {}
        with mode, torch.enable_grad(), without_autocast():
            for node in self.graph_module.graph.nodes:
                if node.op == "placeholder":
                    values[node] = self._fake_placeholder(node, mode)
                elif node.op == "get_attr":
                    values[node] = getattr(self.graph_module, node.target)
                elif node.op == "call_function" and not _is_aside(node):
                    values[node] = self.run_node(node, values)
        return values

    def run_node(self, node, values):
        """Calls a node on values: node -> value."""
        args, kwargs = map_nodes((node.args, node.kwargs), values.__getitem__)
        modes = self.modes[node]
        return node.target(*args, **kwargs) if modes.plain else under(modes, node.target)(*args, **kwargs)

    def under_ambient(self, call):
        """What is not among the operators, such as the loss, in the autocast that the module was exported in."""
        return under(self.ambient, call) if self.ambient.casts else call

    def _fake_placeholder(self, node, mode):
        value = node.meta.get("val")
        if node.name in self.parameter:
            real = self.value_of(self.parameter[node.name])
            fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)
            return fake.requires_grad_(real.requires_grad)
        if node.name in self.buffer:
            value = self.value_of(self.buffer[node.name])
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _register_dataclasses(value):
    """With pytree, which torch.export asks."""
    for leaf in _pytree.tree_leaves(value):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and type(leaf) not in _pytree.SUPPORTED_NODES:
            torch.export.register_dataclass(type(leaf))
            _register_dataclasses(leaf)


def moved(value, device):
    """The same, its tensors on that device, those in dataclasses too."""
    _register_dataclasses(value)
    return _pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), value)


@contextlib.contextmanager
def _dataclasses_known(module, arguments):
    """Those of the arguments and, while the module is exported, of its output."""
    _register_dataclasses(arguments)
    hook = module.register_forward_hook(lambda _, given, output: _register_dataclasses(output))
    try:
        yield
    finally:
        hook.remove()


def touches_change(trace, values):
    """Operators that read or make a tensor which some operator changes in place; values: of fake_values()."""

    def storage(node):
        value = values.get(node)
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None

    written = {storage(n) for op in trace.ops for n in written_by(op.node)} - {None}
    return {op for op in trace.ops if any(storage(n) in written for n in [*op.reads, op.node, *op.outputs])}


def map_nodes(value, function):
    return torch.fx.node.map_arg(value, function)


def samples_of(args, kwargs):
    """The batch of an example: the first size of its first tensor that has one. Tensors with another are no batch."""
    return next((x.shape[0] for x in tensors_of((args, kwargs or {})) if x.dim()), 1)


def is_batch(value, samples):
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == samples


def tensors_of(value):
    return [t for t in _pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def _merge(lists):
    merged = {}
    for items in lists:
        merged.update(dict.fromkeys(items))
    return list(merged)


def _op_name(node):
    """`blocks.0.attn.linear_3`: the module that calls it, and the node, whose name is unique."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    name = f"{path}.{node.name}" if path else node.name
    return "".join(c if c.isalnum() or c in "._-/:[]" else "_" for c in name)


def _is_aside(node):
    """Does it only compare what it gets with what tracing saw, or enter or leave a region?"""
    return node.target in MARKS or "_assert" in str(node.target)


def writes_in_schema(node):
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def aliased_by(node):
    """Nodes whose memory a node's tensor may lie in, by its schema: views, and what is changed in place."""
    schema = getattr(node.target, "_schema", None)
    if node.target is operator.getitem:
        return node.all_input_nodes[:1]
    if schema is None:
        return []
    given = {**dict(zip((a.name for a in schema.arguments), node.args)), **node.kwargs}
    names = [a.name for a in schema.arguments if a.alias_info is not None]
    return [given[n] for n in names if isinstance(given.get(n), torch.fx.Node)]


def written_by(node):
    """Nodes whose tensors a node changes in place, by its schema."""
    if not writes_in_schema(node):
        return []
    given = {**dict(zip((a.name for a in node.target._schema.arguments), node.args)), **node.kwargs}
    names = [a.name for a in node.target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [given[n] for n in names if isinstance(given.get(n), torch.fx.Node)]


def _mutates_buffer(node, buffers):
    """Running statistics, counters: state that a repeated forward would change once more. Batch norm's schema does not
    say so."""
    touched = [s for s in node.all_input_nodes if s.name in buffers]
    name = str(node.target)
    if not touched:
        return False
    if "batch_norm" in name or "instance_norm" in name:
        return any(a is True for a in node.args)
    return writes_in_schema(node) and node.args and node.args[0] in touched
