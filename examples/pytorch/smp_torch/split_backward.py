"""A stage whose backward comes in two parts: I, the gradients of what it received, and W, those of its weights.

As torch.distributed.pipelining does it (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024): I goes from the outputs
to the inputs and keeps the gradients that pass the nodes at which the way of some weight leaves; W starts there. Three
things differ, each of which gave wrong gradients or an error in PyTorch 2.15: weights that share such nodes are one
group, whatever joins them; a weight whose way meets no input starts at the output; groups keep the graph for each other.
"""

from torch.autograd import grad as autograd_grad
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage

from .devices import kind_of


class SplitStage(PipelineStage):
    def __init__(self, module, first_microbatch, *args, **kwargs):
        """first_microbatch: the number of this process's first one in the batch of all replicas."""
        super().__init__(module, *args, **kwargs)
        self.module, self.first_microbatch, self.seed = module, first_microbatch, None

    def forward_one_chunk(self, fwd_chunk_id, *args, **kwargs):
        self.module.draw = None if self.seed is None else (kind_of(self.device), self.seed, self.first_microbatch + fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_maybe_with_nosync(self, backward_type, bwd_kwargs, last_backward=False):
        if isinstance(self.submod, FSDPModule):
            self.submod.set_reshard_after_backward(False)
            self.submod.set_requires_gradient_sync(False)
        if backward_type == "input":
            outputs = _roots(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"])
            return backward_input(outputs, bwd_kwargs["input_values"], list(self.submod.parameters()))
        if backward_type == "weight":
            backward_weight(list(self.submod.parameters()), bwd_kwargs["param_groups"])
            return (), None
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)


class _Group:
    """Weights, by index, and where their gradients start: edges with their gradients, nodes with those that passed."""

    def __init__(self):
        self.weights = []
        self.edges = []
        self.nodes = []
        self.passed = {}


def _roots(outputs, gradients):
    """(edge, gradient; None of a loss) of every output that has one."""
    found = []
    for i, output in enumerate(outputs):
        gradient = None if gradients is None else gradients[i]
        if isinstance(output, GradientEdge):
            found.append((output, gradient))
        elif output is not None and output.requires_grad:
            found.append((get_gradient_edge(output), gradient))
    return found


def _users(roots):
    """node -> the nodes whose next ones it is among, of all that the roots lead to."""
    users = {edge.node: [] for edge, _ in roots}
    stack = list(users)
    while stack:
        node = stack.pop()
        for below, _ in node.next_functions:
            if below is None:
                continue
            if below not in users:
                users[below] = []
                stack.append(below)
            users[below].append(node)
    return users


def _above(node, users, stop):
    """The nodes above one, up to and without those in `stop`; and which of these were met."""
    seen, met, stack = {node}, set(), [node]
    while stack:
        for user in users.get(stack.pop(), ()):
            if user in stop:
                met.add(user)
            elif user not in seen:
                seen.add(user)
                stack.append(user)
    return seen, met


def _groups(roots, inputs, weights, users):
    """Weights whose gradients start at the same nodes are a group."""
    way = set()
    for value in inputs:
        way |= _above(get_gradient_edge(value).node, users, ())[0]
    group_at = {}
    groups = []
    for index, weight in enumerate(weights):
        if not weight.requires_grad:
            continue
        node = get_gradient_edge(weight).node
        if node not in users:
            continue
        seen, met = _above(node, users, way)
        ends = met | {(edge.node, edge.output_nr) for edge, _ in roots if edge.node in seen}
        group = _Group()
        group.weights.append(index)
        for other in {id(group_at[e]): group_at[e] for e in ends if e in group_at}.values():
            group.weights += other.weights
            ends |= {e for e, g in group_at.items() if g is other}
            groups.remove(other)
        group_at.update(dict.fromkeys(ends, group))
        groups.append(group)
    for end, group in group_at.items():
        if isinstance(end, tuple):
            group.edges += [(edge, g) for edge, g in roots if (edge.node, edge.output_nr) == end]
        else:
            group.nodes.append(end)
    return groups


def backward_input(roots, inputs, weights):
    """Gradients of the inputs (None where there is none), and what backward_weight needs."""
    users = _users(roots)
    wanted = [v for v in inputs if getattr(v, "requires_grad", False)]
    groups = _groups(roots, wanted, weights, users)
    if not wanted:  # what stands before has nothing to learn
        return (None,) * len(inputs), groups
    handles = [node.register_prehook(_keep(group, node)) for group in groups for node in group.nodes]
    try:
        made = autograd_grad([edge for edge, _ in roots], wanted, [g for _, g in roots], retain_graph=True,
                             allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    gradient = dict(zip(map(id, wanted), made))
    return tuple(gradient.get(id(v)) for v in inputs), groups


def _keep(group, node):
    def hook(gradients):
        group.passed[node] = gradients
    return hook


def backward_weight(weights, groups):
    """Adds the gradients of the weights to their .grad."""
    for group in groups:
        starts = [(GradientEdge(node, i), g) for node, passed in group.passed.items() for i, g in enumerate(passed)
                  if g is not None] + group.edges
        if not starts:
            continue
        # One of its nodes may stand above another: what arrives there is what passed, not that once more.
        handles = [node.register_prehook(lambda _, passed=passed: passed) for node, passed in group.passed.items()]
        targets = [weights[i] for i in group.weights]
        try:
            made = autograd_grad([edge for edge, _ in starts], targets, [g for _, g in starts], retain_graph=True,
                                 allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        for weight, gradient in zip(targets, made):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
