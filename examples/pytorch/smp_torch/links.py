"""How long messages between two processes of this machine take, for the planner."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from .devices import KINDS, kind_of
from .launch import launch

SIZES = [8, 4 << 10, 64 << 10, 1 << 20, 8 << 20]


def this_machine(folder, processes, kind, curve=None):
    """Writes a cluster file of so many processes on this machine, and returns its path; curve: of measure_curve(), else two
    processes measure it."""
    curve = curve or measure_link(folder, kind)
    latency_us = curve[0][1]
    rate = (curve[-1][0] - curve[-2][0]) / max(curve[-1][1] - curve[-2][1], 1e-3) * 1e6
    cores = f"cores_per_node: {os.cpu_count()}\n" if kind.name == "cpu" else ""
    path = f"{folder}/cluster.yaml"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"smp: 1\nname: this machine\nnodes: 1\ndevices_per_node: {processes}\n"
                   f"{cores}device: {{memory: {kind.memory_bytes(processes)}, compute: {{fp32: 1e11}}, bandwidth: 1e10}}\n"
                   f"links: {{intra_node: {{bandwidth: {rate:.0f}, latency_us: {latency_us:.3f}}}}}\n"
                   f"overlap: {str(kind.overlap).lower()}\n")
    return path


def measure_link(folder, kind):
    """List of (bytes, us one way), rising; made by two processes."""
    path = f"{folder}/link.json"
    launch(2, "smp_torch.links", [path, kind.name])
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _ping_pong(size, rank, device):
    kind = kind_of(device)
    message = torch.zeros(size, dtype=torch.uint8, device=device)
    times = []
    end = time.perf_counter() + 0.1
    for turn in range(200):
        start = time.perf_counter()
        if rank == 0:
            dist.send(message, 1)
            dist.recv(message, 1)
        elif rank == 1:
            dist.recv(message, 0)
            dist.send(message, 0)
        kind.synchronize()
        times.append(time.perf_counter() - start)
        done = torch.tensor(turn >= 4 and time.perf_counter() > end, device=device)
        dist.broadcast(done, 0)
        if done:
            break
    return 1e6 * sorted(times[1:])[len(times[1:]) // 2] / 2


def measure_curve(device):
    """Collective: between the first two processes, in the first one."""
    curve, most = [], 0.0
    for size in SIZES:
        most = max(most, _ping_pong(size, dist.get_rank(), device))
        curve.append((size, most))
    return curve


def main():
    torch.set_num_threads(1)
    kind = KINDS[sys.argv[2]]
    device = kind.place()
    dist.init_process_group(kind.backend)
    curve = measure_curve(device)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(curve, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
