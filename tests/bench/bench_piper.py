#!/usr/bin/env python3
"""Plans of SMP under the cost model of Piper (Tarnawski et al., NeurIPS 2021), beside its optimum.

    python3 tests/bench/bench_piper.py BIN [--devices K ...] [--memory GIB ...] [--batch N] [--no-slower]

BIN: the folder of the programs. The model is Piper's own example, profiled on A100 for
every degree of tensor parallelism (tests/data/piper-bert32.txt), with its bandwidth of 25 GiB/s, the
devices and memories of its figure 1 (8 devices of 8 GiB unless told), and batches of 1920.

Piper chooses for every stage a degree of tensor and of data parallelism, and for every layer whether
it is recomputed; its objective is the slowest stage's time per micro-batch. Both degrees of SMP are
those of all stages. For every degree SMP gets the same costs (bytes at a border are the mean of
what Piper charges its two sides, which differ) and plans ranks, replicas, borders and what is
recomputed for the slowest stage; the best of the plans counts. All is then computed by Piper's
rules, here written anew from its description. Columns, as the slowest stage in ms:

- piper: the least there is, by dynamic programming over the two orders of the layers that make
  sense (its graph is a line but for the mask, which all layers read);
- one degree: the same where all stages must have the same two degrees, and all ranks are used;
- equal layers: the best of as many layers on every stage, degrees alike, all or nothing recomputed
  (a baseline of the paper);
- smp: what SMP's best plan comes to, and the memory that SMP was told for it.
"""
import argparse
import collections
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEGREES = (1, 2, 4, 8)
TOLD = range(116, 80, -4)  # per cent of the memory
BANDWIDTH = 25.0 * (1 << 30)  # bytes per second, of a device
Choice = collections.namedtuple("Choice", "seconds per_microbatch besides")
Edge = collections.namedtuple("Edge", "source target bytes read_sync write_sync")


class Instance:
    """Nodes by name; node[name][degree] is (weights, [choices]), the second one recomputes."""

    def __init__(self, path):
        self.node, self.edges, times, memory = {}, [], {}, {}
        for line in path.read_text().splitlines():
            word, *rest = line.split("#")[0].split() or [""]
            if word == "time":
                times[rest[0]] = [float(us) / 1e6 for us in rest[1:]]
            elif word == "memory":
                memory[rest[0], int(rest[1])] = [float(x) for x in rest[2:]]
            elif word in ("tensor", "pooler"):
                name, weights, per, besides = (rest[0], 0, float(rest[1]), 0) if word == "tensor" \
                    else (word, *map(float, rest))
                self.node[name] = {t: (weights, [Choice(0, per, besides)] * 2) for t in DEGREES}
            elif word == "edge":
                self.add_edges(rest, len(times) - 1)
        for name, seconds in times.items():
            self.node[name] = {}
            for i, t in enumerate(DEGREES):
                weights, *bytes_ = memory[name.rstrip("0123456789"), t]
                self.node[name][t] = (weights, [Choice(seconds[2 * i + c], *bytes_[2 * c:2 * c + 2])
                                                for c in range(2)])
        self.layers = [f"layer{i + 1}" for i in range(len(times) - 1)]
        line = ["embedding", *self.layers, "pooler"]
        inputs = ["tokens", "positions"]
        self.orders = [[*inputs, "embedding", "mask", *line[1:]], ["mask", *inputs, *line]]

    def add_edges(self, words, layers):
        source, target = words[:2]
        numbers = [float(x) for x in words[2:]]
        for i in range(2, layers + 1) if target == "layer" else [0]:
            self.edges.append(Edge(f"layer{i - 1}" if source == "layer" else source,
                                   f"layer{i}" if target == "layer" else target, *numbers))


class Judge:
    """Piper's rules, for a number of micro-batches and a memory."""

    def __init__(self, instance, batch, memory):
        self.instance, self.batch, self.memory = instance, batch, memory

    def border_bytes(self, nodes, t):
        """Of all edges with one end among nodes, forth and back; per micro-batch."""
        total = 0
        for edge in self.instance.edges:
            reads, writes = edge.target in nodes, edge.source in nodes
            if reads != writes:
                sync = edge.read_sync if reads else edge.write_sync
                total += 2 * (edge.bytes + (sync if t > 1 else 0))
        return total

    def common(self, nodes, t, d):
        """What a stage takes per micro-batch besides computing."""
        weights = sum(self.instance.node[name][t][0] for name in nodes)
        sums = 4 * (d - 1) * weights / d / self.batch  # as by a distributed parameter server
        return (self.border_bytes(nodes, t) / d + sums) / BANDWIDTH

    def bytes(self, nodes, t, live, again):
        return sum(choice.per_microbatch * live + choice.besides for choice in (
            self.instance.node[name][t][1][name in again] for name in nodes))

    def stage(self, nodes, t, d, live, again):
        """Seconds per micro-batch of a stage, None where it does not fit."""
        if self.bytes(nodes, t, live, again) > self.memory:
            return None
        return self.common(set(nodes), t, d) + sum(
            self.instance.node[name][t][1][name in again].seconds for name in nodes) / d

    def recomputed(self, nodes, t, live):
        """The choice that costs least and fits, None if nothing fits. Layers save alike, so for the
        embedding either way those that cost least are taken."""
        best = None
        for first in ((), ("embedding",)) if "embedding" in nodes else ((),):
            extra = sorted((self.cost(name, t), name) for name in nodes if name.startswith("layer"))
            need = self.bytes(nodes, t, live, first) - self.memory
            count = 0
            if need > 0:
                if not extra:
                    continue
                saved = self.bytes(nodes, t, live, ()) - self.bytes(nodes, t, live, extra[0][1:])
                count = len(extra) + 1 if saved <= 0 else int(-(-need // saved))
                if count > len(extra):
                    continue
            again = set(first) | {name for _, name in extra[:count]}
            cost = sum(self.cost(name, t) for name in again)
            if best is None or cost < best[0]:
                best = cost, again
        return best and best[1]

    def cost(self, name, t):
        kept, again = self.instance.node[name][t][1]
        return again.seconds - kept.seconds

    def best_stage(self, nodes, t, d, live):
        again = self.recomputed(nodes, t, live)
        return None if again is None else (self.stage(nodes, t, d, live, again), again)

    def plan(self, stages):
        """Seconds of the slowest stage: [(nodes, t, d, recomputed)] from first to last."""
        later, slowest = sum(d for _, _, d, _ in stages), 0
        for nodes, t, d, again in stages:
            seconds = self.stage(nodes, t, d, -(-later // d), again)
            if seconds is None:
                return None
            slowest, later = max(slowest, seconds), later - d
        return slowest


def least(judge, devices, shapes=None):
    """The least slowest stage: over the last stages first, by devices used and replicas in them.
    `shapes`: pairs of degrees, one of which all stages have; all devices are used then."""
    best = (None, None)
    for shape in shapes or [None]:
        for order in judge.instance.orders:
            allowed = [shape] if shape else [(t, d) for t in DEGREES
                                             for d in range(1, devices // t + 1)
                                             if judge.batch % d == 0]
            n = len(order)
            table = {(n, 0, 0): (0, ())}
            for begin in reversed(range(n)):
                for end in range(begin + 1, n + 1):
                    ends = [key for key in table if key[0] == end]
                    for (t, d), key in itertools.product(allowed, ends):
                        used, replicas = key[1] + t * d, key[2] + d
                        if used > devices:
                            continue
                        made = memo(judge, tuple(order[begin:end]), t, d, -(-replicas // d))
                        if made is None:
                            continue
                        value = max(made[0], table[key][0])
                        place = (begin, used, replicas)
                        if place not in table or value < table[place][0]:
                            stage = (order[begin:end], t, d, made[1])
                            table[place] = (value, (stage, *table[key][1]))
            for (begin, used, _), (value, stages) in table.items():
                if begin == 0 and (not shape or used == devices) and \
                        (best[0] is None or value < best[0]):
                    best = value, list(stages)
    return best


def memo(judge, nodes, t, d, live):
    known = judge.__dict__.setdefault("known", {})
    key = nodes, t, d, live
    if key not in known:
        known[key] = judge.best_stage(nodes, t, d, live)
    return known[key]


def equal_layers(judge, devices):
    instance, best = judge.instance, (None, None)
    head, tail = ["tokens", "positions", "embedding", "mask"], ["pooler"]
    for t, d, ranks, apart in itertools.product(DEGREES, range(1, devices + 1),
                                                range(1, devices + 1), (0, 1)):
        inner = ranks - 2 * apart
        if t * d * ranks > devices or judge.batch % d or not 1 <= inner <= len(instance.layers):
            continue
        each, more = divmod(len(instance.layers), inner)
        cuts = list(itertools.accumulate([each + (i >= inner - more) for i in range(inner)]))
        parts = [instance.layers[a:b] for a, b in zip([0, *cuts], cuts)]
        if apart:
            parts = [[], *parts, []]
        parts[0], parts[-1] = [*head, *parts[0]], [*parts[-1], *tail]
        for again in (set(), set(instance.node)):
            stages = [(part, t, d, again) for part in parts]
            value = judge.plan(stages)
            if value is not None and (best[0] is None or value < best[0]):
                best = value, stages
    return best


def model_of(instance, t, first):
    """The instance at one degree in SMP's format, if the mask and `first` layers are on the first
    stage. Piper charges the mask once for every layer of another stage, to both sides, and keeps
    one copy of it: SMP would keep all that it sends, so the model has no mask, and these charges,
    linear in layers, are part of times. SMP keeps the gradient and two states of AdamW beside a
    weight: with a quarter of Piper's bytes as weights both keep the same."""
    read, write, into, out = {}, {}, collections.defaultdict(list), collections.defaultdict(list)
    for edge in instance.edges:
        extra = (edge.read_sync, edge.write_sync) if t > 1 else (0, 0)
        if edge.source == "mask":
            read[edge.target], write[edge.target] = (2 * (edge.bytes + x) / BANDWIDTH for x in extra)
        else:
            tensor = f"{edge.source}.{edge.target}"
            out[edge.source].append({"name": tensor, "bytes": int(edge.bytes + sum(extra) / 2),
                                     "dtype": "float32"})
            into[edge.target].append(tensor)
    at_first = sum(write.values()) - sum(read[n] + write[n] for n in instance.layers[:first])
    ops = []
    for name in (name for name in instance.orders[0] if name != "mask"):
        _, (kept, again) = instance.node[name][t]
        forward = again.seconds - kept.seconds  # what SMP repeats where it recomputes
        more = at_first if name == "embedding" else read.get(name, 0)
        ops.append({"op": "opaque", "name": name, "in": into[name],
                    "outputs": out[name] or [{"name": f"{name}.out", "bytes": 4}],
                    "weights": [{"name": f"{name}.w", "bytes": 4 * int(kept.besides / 16)}]
                    if kept.besides else [],
                    "cost": {"forward_us": 1e6 * forward, "stash_bytes": int(kept.per_microbatch),
                             "backward_us": 1e6 * (max(kept.seconds - forward + more, 0))}})
    return {"smp": 1, "name": f"piper-bert32-{t}", "ops": ops}


class Smp:
    def __init__(self, programs, instance, folder):
        self.programs, self.instance, self.folder = programs, instance, pathlib.Path(folder)

    def plan(self, judge, devices, t, replicas, memory, first):
        model, cluster, plan = (self.folder / x for x in ("model.yaml", "cluster.yaml", "plan.json"))
        model.write_text(json.dumps(model_of(self.instance, t, first)))  # which is YAML, too
        cluster.write_text(json.dumps({
            "smp": 1, "nodes": 1, "devices_per_node": devices // t, "overlap": False,
            "device": {"memory": int(memory), "compute": {"fp32": "19.5TFLOP/s"},
                       "bandwidth": "2039GB/s"},
            "links": {"intra_node": {"bandwidth": BANDWIDTH, "latency_us": 0}}}))
        done = subprocess.run([str(x) for x in (
            self.programs / "smp-partition", model, "--cluster", cluster, "-n", devices // t,
            "--ddp", replicas, "--chunks", 1, "--pipeline", "1f1b", "--objective", "bottleneck",
            "--microbatches", min(judge.batch // replicas, 64), "--export", f"json:{plan}")],
            capture_output=True, text=True, check=False)
        if done.returncode == 3:
            return None
        if done.returncode:
            raise SystemExit(f"bench_piper.py: smp-partition: {done.stderr}")
        stages = []
        for stage in json.loads(plan.read_text())["stages"]:
            again = stage.get("recompute", False)
            again = set(stage["ops"]) if again is True else set(again or [])
            stages.append((stage["ops"], t, replicas, again))
        stages[0][0].append("mask")
        return stages

    def best(self, judge, devices, least_s):
        """Value, stages, per cent of the memory that SMP was told: it counts a little more or less
        than Piper's rules, which say what fits. Nothing is better than `least_s`."""
        best = (None, None, None)
        for t, replicas in itertools.product(DEGREES, range(1, devices + 1)):
            if devices % (t * replicas) or judge.batch % replicas:
                continue
            ranks = devices // t // replicas
            for first in range(2 * len(self.instance.layers) // ranks + 1 if ranks > 1 else 1):
                for percent in TOLD:
                    stages = self.plan(judge, devices, t, replicas, judge.memory * percent / 100,
                                       first)
                    if stages is None:
                        break  # nor with less
                    value = judge.plan(stages)
                    if value is not None and (best[0] is None or value < best[0]):
                        best = value, stages, percent
                    if best[0] is not None and best[0] <= least_s:
                        return best
        return best


def words(stages):
    """Degrees of tensor and data parallelism, layers and how many are recomputed, of every stage."""
    return "; ".join(f"{t}x{d}: {sum(n.startswith('layer') for n in nodes)}"
                     + (f" ({k})" if (k := sum(n.startswith("layer") for n in again & set(nodes)))
                        else "") for nodes, t, d, again in stages)


def main():
    parser = argparse.ArgumentParser(description="SMP's plans under Piper's cost model.")
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--devices", type=int, nargs="+", default=[8])
    parser.add_argument("--memory", type=float, nargs="+", default=[8], metavar="GIB")
    parser.add_argument("--batch", type=int, default=1920)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "tests/data/piper-bert32.txt")
    parser.add_argument("--no-slower", action="store_true", help="fail if SMP's plan is slower")
    options = parser.parse_args()
    instance = Instance(options.data)
    print("| devices | GiB | piper | one degree | equal layers | smp | over piper | memory |\n"
          "|---|---|---|---|---|---|---|---|")
    details = []
    with tempfile.TemporaryDirectory() as folder:
        smp = Smp(options.programs.resolve(), instance, folder)
        for devices, gib in itertools.product(options.devices, options.memory):
            judge = Judge(instance, options.batch, gib * (1 << 30))
            shapes = [(t, d) for t in DEGREES for d in range(1, devices + 1)
                      if devices % (t * d) == 0 and options.batch % d == 0]
            made = [least(judge, devices), least(judge, devices, shapes),
                    equal_layers(judge, devices)]
            made.append(smp.best(judge, devices, made[0][0] or 0))
            cells = [f"{1e3 * m[0]:.3f}" if m[0] else "-" for m in made]
            over = f"{100 * (made[3][0] / made[0][0] - 1):.2f} %" if made[0][0] and made[3][0] else "-"
            print(f"| {devices} | {gib:g} | {' | '.join(cells)} | {over} | "
                  + (f"{made[3][2]} % |" if made[3][0] else "- |"), flush=True)
            details += [f"{devices} devices of {gib:g} GiB, {name}: {words(m[1])}" for name, m in
                        zip(("piper", "one degree", "equal layers", "smp"), made) if m[1]]
            for value, stages, *_ in made:
                if stages and (judge.plan(stages) != value or value < made[0][0]):
                    sys.exit("bench_piper.py: a plan is worth something else, or more than the best")
            if options.no_slower and made[0][0] and made[3][0] != made[0][0]:
                sys.exit("bench_piper.py: SMP's plan is slower than Piper's")
    print("\nstages, tensor x data: layers (recomputed):", *details, sep="\n")


if __name__ == "__main__":
    main()
