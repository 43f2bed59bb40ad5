"""What differs between kinds of devices: clocks, memory, messages, random numbers. One class each, in KINDS."""

import os
import statistics
import time

import torch


class Cpu:
    name = "cpu"
    backend = "gloo"
    overlap = False  # messages over gloo are copied by the cores that compute

    @staticmethod
    def place():
        """The device of this process."""
        return torch.device("cpu")

    @staticmethod
    def stamp():
        """A point in time, of what has been asked for before; us() of two when synchronize() was called after both."""
        return time.perf_counter()

    @staticmethod
    def us(start, end):
        return 1e6 * (end - start)

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def generators():
        """Indices for torch.random.fork_rng, beside the CPU's."""
        return []

    @staticmethod
    def seed(number):
        """The CPU's generator and those; torch.manual_seed() would seed all cards."""
        torch.default_generator.manual_seed(number)

    @staticmethod
    def memory_bytes(processes):
        """For one of so many processes of this machine, with some left to the system."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 9 // 10 // processes


class Cuda:
    name = "cuda"
    backend = "cpu:gloo,cuda:nccl"
    overlap = True

    @staticmethod
    def place():
        index = os.environ.get("LOCAL_RANK")  # of torchrun
        device = torch.device("cuda", torch.cuda.current_device() if index is None else int(index))
        torch.cuda.set_device(device)
        return device

    @staticmethod
    def stamp():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @staticmethod
    def us(start, end):
        return 1e3 * start.elapsed_time(end)

    @staticmethod
    def synchronize():
        torch.cuda.synchronize()

    @staticmethod
    def generators():
        return [torch.cuda.current_device()]

    @staticmethod
    def seed(number):
        torch.default_generator.manual_seed(number)
        torch.cuda.manual_seed(number)

    @staticmethod
    def memory_bytes(processes):
        sharing = -(-processes // torch.cuda.device_count())
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory * 9 // 10 // sharing


KINDS = {kind.name: kind for kind in (Cpu, Cuda)}


def device_of(module):
    return next((x.device for x in [*module.parameters(), *module.buffers()]), torch.device("cpu"))


def kind_of(device):
    """Of a torch.device, or its name."""
    name = torch.device(device).type
    if name not in KINDS:
        raise ValueError(f"device '{name}': smp_torch runs on {' and '.join(KINDS)}")
    return KINDS[name]


def median_us(kind, call, least_s=0.004, most=30):
    """Median of runs that together take least_s, after one to warm up."""
    call()
    kind.synchronize()
    stamps = []
    end = time.perf_counter() + least_s
    while len(stamps) < 3 or (time.perf_counter() < end and len(stamps) < most):
        start = kind.stamp()
        call()
        stamps.append((start, kind.stamp()))
        kind.synchronize()
    return statistics.median(kind.us(*pair) for pair in stamps)
