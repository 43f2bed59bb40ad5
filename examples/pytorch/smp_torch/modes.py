"""Autocast and no_grad in a trace: in which modes each operator runs.

torch.export makes one operator of a region of either, and forgets a no_grad inside an autocast (2.15). Here the graph stays flat,
with the calls that enter and leave regions, and from these each operator gets its modes. Modes are whole: they do not depend on
those around a call. PyTorch keeps what weights are cast to until the outermost region ends; that ends here where it does there.
"""

import contextlib
from typing import NamedTuple

import torch
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass


class Modes(NamedTuple):
    casts: tuple = ()  # (device type, dtype) where autocast is on
    grad: bool = True  # False: in a no_grad region
    region: int = 0  # which outermost region of autocast; 0: none

    @property
    def plain(self):
        return not self.casts and self.grad

    def __str__(self):
        return ", ".join(f"autocast({device}, {dtype})" for device, dtype in self.casts) or "no autocast"


_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
MARKS = (_ENTER, _EXIT, torch._C._set_grad_enabled)


def _devices():
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] + ([accelerator.type] if accelerator else [])


def modes_now():
    """Those around the call."""
    casts = tuple((d, torch.get_autocast_dtype(d)) for d in _devices() if torch.is_autocast_enabled(d))
    return Modes(casts, region=-1 if casts else 0)


def set_modes(casts, grad):
    """Until kept_modes() ends."""
    casts = dict(casts)
    for device in _devices():
        torch.set_autocast_enabled(device, device in casts)
        if device in casts:
            torch.set_autocast_dtype(device, casts[device])
    torch._C._set_grad_enabled(grad)


@contextlib.contextmanager
def kept_modes():
    """Afterwards modes are what they were."""
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _devices()]
    grad = torch.is_grad_enabled()
    torch.autocast_increment_nesting()
    try:
        yield grad
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch._C._set_grad_enabled(grad)


def under(modes, call):
    """The same call, in these modes."""
    def run(*args, **kwargs):
        with kept_modes() as grad:
            set_modes(modes.casts, grad and modes.grad)
            return call(*args, **kwargs)
    return run


@contextlib.contextmanager
def without_autocast():
    """For backwards, which PyTorch wants outside of autocast: forwards set their own modes."""
    with kept_modes() as grad:
        set_modes((), grad)
        yield


@contextlib.contextmanager
def regions_flat():
    """While a module is exported."""
    passes = [(replace_autocast_with_hop_pass, "replace_autocast_with_hop_pass"),
              (replace_set_grad_with_hop_pass, "replace_set_grad_with_hop_pass")]
    before = [getattr(module, name) for module, name in passes]
    for module, name in passes:
        setattr(module, name, lambda graph_module, signature: (graph_module, signature))
    try:
        yield
    finally:
        for (module, name), function in zip(passes, before):
            setattr(module, name, function)


def read_modes(graph, ambient):
    """node -> its modes; ambient: those that the module was exported in."""
    found, now, entered, regions = {}, ambient, [], 0
    for node in graph.nodes:
        if node.target is _ENTER:
            device, dtype, enabled, _ = node.args  # PyTorch exports without the cache
            casts = {**dict(now.casts), device: dtype} if enabled else {d: t for d, t in now.casts if d != device}
            regions += not now.region
            entered.append(now)
            now = Modes(tuple(sorted(casts.items())), now.grad, now.region or regions)
        elif node.target is _EXIT:
            now = entered.pop()._replace(grad=now.grad)
        elif node.target is torch._C._set_grad_enabled:
            now = now._replace(grad=node.args[0])
        else:
            found[node] = now
    return found
