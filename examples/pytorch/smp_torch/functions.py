"""A user's own autograd.Function in a trace: kept whole, with its own backward.

torch.export looks into its forward and forgets its backward (2.15): gradient reversal becomes the identity. So while a
module is exported, the forward of each is one operator that nobody looks into, and afterwards that operator calls the
function. Of gradients that are changed by hooks an exported graph keeps nothing: those are refused.
"""

import contextlib
import os
import traceback

import torch
from torch.autograd.function import _is_setup_context_defined
from torch.utils import _pytree
from torch.utils.checkpoint import CheckpointFunction

_library = torch.library.Library("smp_torch", "DEF")
_library.define("function(int key, Tensor[] tensors) -> Tensor[]")
_met = []  # calls in the export that goes on
_forwards = {}  # function -> its own forward, None where it is inherited, while forwards are replaced


class _Call:
    """One call of a function."""

    def __init__(self, function, args):
        self.function = function
        self.place = _place()
        self.args = args
        self.takes = [isinstance(a, torch.Tensor) for a in args]
        self.tensors = [a for a in args if isinstance(a, torch.Tensor)]
        for leaf in _pytree.tree_leaves([a for a in args if not isinstance(a, torch.Tensor)]):
            if isinstance(leaf, (torch.Tensor, torch.nn.Module)) or callable(leaf):
                raise ValueError(f"{self.place}: {function.__name__} gets a {type(leaf).__name__}, whose tensors a trace does "
                                 "not see: pass tensors one by one")

    def __call__(self, *tensors):
        """The tensors among what it returns, in a list."""
        found = iter(tensors)
        out = self.function.apply(*(next(found) if take else a for take, a in zip(self.takes, self.args)))
        self.single = not isinstance(out, tuple)
        parts = (out,) if self.single else out
        self.others = [None if isinstance(o, torch.Tensor) else (o,) for o in parts]
        return [o for o in parts if isinstance(o, torch.Tensor)]

    def shaped(self, tensors):
        """What the function returns, of its tensors."""
        found = iter(tensors)
        parts = tuple(next(found) if o is None else o[0] for o in self.others)
        return parts[0] if self.single else parts

    def forget(self):
        """What belongs to the export."""
        self.args = [None if take else a for take, a in zip(self.takes, self.args)]
        self.tensors = None


@torch.library.register_fake("smp_torch::function", lib=_library)
def _shapes(key, tensors):
    call = _met[key]
    versions = [t._version for t in tensors]
    forwards = dict(_forwards)
    _put_forwards_back()
    try:
        with torch.no_grad():
            made = call(*tensors)
    finally:
        _replace_forwards(forwards)
    if versions != [t._version for t in tensors]:
        raise ValueError(f"{call.place}: {call.function.__name__} changes its argument in place, which cannot be split")
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in made]


def _forward_of(function):
    has_context = not _is_setup_context_defined(function.setup_context)

    def forward(*args):
        call = _Call(function, args[1:] if has_context else args)
        _met.append(call)
        return call.shaped(torch.ops.smp_torch.function.default(len(_met) - 1, call.tensors))

    return staticmethod(forward)


def _functions():
    """Those of users; not PyTorch's own."""
    found, stack = [], [torch.autograd.Function]
    while stack:
        subclasses = stack.pop().__subclasses__()
        found += [c for c in subclasses if c.__module__.partition(".")[0] != "torch"]
        stack += subclasses
    return dict.fromkeys(found)


def _replace_forwards(functions):
    for function in functions:  # each, also where it is inherited: a forward does not know whose it is
        _forwards[function] = function.__dict__.get("forward")
        function.forward = _forward_of(function)


def _put_forwards_back():
    for function, forward in _forwards.items():
        if forward is None:
            del function.forward
        else:
            function.forward = forward
    _forwards.clear()


def _refuse_hook(*_):
    raise ValueError(f"{_place()}: a hook on a tensor changes its gradient, which a trace cannot keep: write a "
                     "torch.autograd.Function, which is kept whole")


@contextlib.contextmanager
def kept_whole(module):
    """While `module` is exported. Refuses what changes gradients in ways that a trace loses."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise ValueError(f"module '{name}' has a backward hook, which a trace cannot keep")
    hook = torch.Tensor.register_hook
    _met.clear()
    _replace_forwards(_functions())
    torch.Tensor.register_hook = _refuse_hook
    CheckpointFunction.apply = staticmethod(lambda function, preserve, *args: function(*args))  # its forward has no gradient
    try:
        yield
    finally:
        del CheckpointFunction.apply
        torch.Tensor.register_hook = hook
        _put_forwards_back()


def put_back(graph_module):
    """The operators of what was exported in kept_whole() call their functions."""
    for part in graph_module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for node in part.graph.nodes:
            if node.op == "call_function" and node.target is torch.ops.smp_torch.function.default:
                key, tensors = node.args
                node.target = _function_of(_met[key])
                node.args = tuple(tensors)
        if part is not graph_module:
            part.recompile()
    _met.clear()


def _function_of(call):
    """A function: those have the names that generated code needs."""
    def function(*tensors):
        return call(*tensors)

    call.forget()
    function.__name__ = function.__qualname__ = call.function.__name__
    function.__module__ = __name__
    return function


def _place():
    """File and line outside of PyTorch and this package that is being run."""
    inside = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(inside) and os.path.exists(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return "the module"
