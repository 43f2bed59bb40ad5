#!/usr/bin/env python3
"""Steps that others measured and published, beside what smp-partition predicts for their degrees.

    python3 tests/bench/measured.py BIN CONFIGS [--ideal] [--only PATTERN] [--rows] [--choose] [--set KEY=VALUE ...]

BIN: the folder of the programs. CONFIGS: a list of jobs, each with its model, degrees, hardware,
measured seconds and source; to them come Megatron-LM's tables, of examples/tensor-cases.sh. Needs
PyYAML. Every job is planned with its own degrees, stages of as many layers, micro-batches and
recomputation, on devices of examples/devices/ (--ideal: at their peaks, as where no description is
named); a table says per source how far predictions are off. What cannot be expressed is listed with
its cause. --set replaces a figure of all descriptions (products=0.8).

What a job's software did is no property of its card, and stands here: attention whose scores are
written to memory (until 2023), dropout, exchanges beside compute or not.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICES = ROOT / "examples/devices"

# Bytes moved for each score. Megatron's kernels, 16 bits: written by Q K^T, read and written by the masked
# softmax and by dropout with a mask of one byte, read by P V; backward likewise (Korthikanti et al. 2022,
# figure 3). Eager, fp32: a kernel each for scale, mask, maximum, softmax and dropout.
SCORES = {"kept": {}, "fused16": {"score_bytes_forward": 11, "score_bytes_backward": 19},
          "eager32": {"score_bytes_forward": 37, "score_bytes_backward": 57}}


class Unsaid(Exception):
    """Why a job cannot be expressed."""


# ---- models

def attention_block(causal, dropout, name="h{i}"):
    ops = [f'{{op: layernorm, name: "{name}.ln_1", in: x, out: a}}',
           f'{{op: linear, name: "{name}.qkv", in: a, out: a, features: 3*d}}',
           f'{{op: attention, name: "{name}.attn", in: a, out: a, heads: heads, causal: {str(causal).lower()}}}',
           f'{{op: linear, name: "{name}.proj", in: a, out: a, features: d}}']
    if dropout:
        ops.append(f'{{op: dropout, name: "{name}.drop_1", in: a, out: a, p: 0.1}}')
    ops += [f'{{op: add, name: "{name}.res_1", in: [x, a], out: x}}',
            f'{{op: layernorm, name: "{name}.ln_2", in: x, out: m}}',
            f'{{op: linear, name: "{name}.fc", in: m, out: m, features: ffn}}',
            f'{{op: gelu, name: "{name}.gelu", in: m, out: m, approximate: tanh}}',
            f'{{op: linear, name: "{name}.down", in: m, out: m, features: d}}']
    if dropout:
        ops.append(f'{{op: dropout, name: "{name}.drop_2", in: m, out: m, p: 0.1}}')
    return ops + [f'{{op: add, name: "{name}.res_2", in: [x, m], out: x}}']


def llama_block():
    return ['{op: rmsnorm, name: "h{i}.ln_1", in: x, out: a}',
            '{op: linear, name: "h{i}.q", in: a, out: q, features: d, bias: false}',
            '{op: linear, name: "h{i}.k", in: a, out: k, features: d * kv_heads / heads, bias: false}',
            '{op: linear, name: "h{i}.v", in: a, out: v, features: d * kv_heads / heads, bias: false}',
            '{op: rope, name: "h{i}.q_rope", in: q, out: q, heads: heads}',
            '{op: rope, name: "h{i}.k_rope", in: k, out: k, heads: kv_heads}',
            '{op: attention, name: "h{i}.attn", in: [q, k, v], out: a, heads: heads, kv_heads: kv_heads, causal: true}',
            '{op: linear, name: "h{i}.o", in: a, out: a, features: d, bias: false}',
            '{op: add, name: "h{i}.res_1", in: [x, a], out: x}',
            '{op: rmsnorm, name: "h{i}.ln_2", in: x, out: m}',
            '{op: linear, name: "h{i}.gate", in: m, out: g, features: ffn, bias: false}',
            '{op: linear, name: "h{i}.up", in: m, out: u, features: ffn, bias: false}',
            '{op: silu, name: "h{i}.silu", in: g, out: g}',
            '{op: mul, name: "h{i}.gated", in: [g, u], out: m}',
            '{op: linear, name: "h{i}.down", in: m, out: m, features: d, bias: false}',
            '{op: add, name: "h{i}.res_2", in: [x, m], out: x}']


def model_text(job):
    m = job["model"]
    if "experts" in m:
        raise Unsaid("experts: groups of experts across replicas are not pinned yet")
    if "layers" not in m or "seq" not in m or "vocab" not in m and m["kind"] != "bert-large":
        raise Unsaid("the model's dimensions are not told")
    llama = m.get("swiglu", False)
    causal = m["kind"] != "bert-large"
    vocab, pad = m.get("vocab", 30522), 128 * job["tp"]
    vocab = -(-vocab // pad) * pad  # as Megatron-LM pads it
    let = {"T": m["seq"], "d": m["hidden"], "heads": m["heads"], "ffn": m.get("ffn", 4 * m["hidden"]),
           "layers": m["layers"], "vocab": vocab}
    if llama:
        let["kv_heads"] = m.get("kv_heads", m["heads"])
    first = ["{op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}"]
    if not llama:
        first.append("{op: position_embedding, name: wpe, in: x, out: x}")
    block = llama_block() if llama else attention_block(causal, job["software"]["dropout"])
    norm = "rmsnorm" if llama else "layernorm"
    tied = "" if m.get("untied") else ", weight: wte.weight"
    last = [f"{{op: {norm}, name: ln_f, in: x, out: x}}",
            f"{{op: linear, name: lm_head, in: x, out: logits, features: vocab, bias: false{tied}}}",
            "{op: cross_entropy, name: loss, in: [logits, targets], out: loss}"]
    lines = ["smp: 1", f"name: {job['id']}", "let: " + json.dumps(let).replace('"', ""),
             "inputs:", "  tokens: {dtype: int32, shape: [T]}", "  targets: {dtype: int32, shape: [T]}",
             "ops:", *(f"  - {op}" for op in first), "  - repeat: layers", "    as: i", "    ops:",
             *(f"      - {op}" for op in block), *(f"  - {op}" for op in last), "loss: loss"]
    return "\n".join(lines) + "\n"


def borders(job):
    """First layers of the stages of a job; None: left to the planner."""
    layers, stages = job["model"]["layers"], job["pp"] * (job.get("vpp") or 1)
    if stages == 1:
        return [0]
    if "unit_borders" in job:  # of Megatron-DeepSpeed's units, of which three come before the layers
        return [min(max(unit - 3, 0), layers) for unit in job["unit_borders"][:-1]]
    if "units_per_stage" in job:  # embedding, layers, head
        units, at = job["units_per_stage"], [0]
        for n in units[:-1]:
            at.append(at[-1] + n)
        return [max(unit - 1, 0) for unit in at]
    if layers % stages:
        return None
    return list(range(0, layers, layers // stages))


def sketch_text(job):
    first = borders(job)
    if first is None:
        return None
    layers = job["model"]["layers"]
    lines = ["smp: 1", "stages:"]
    embedding = "wte" if job["model"].get("swiglu", False) else "wpe"
    for s, begin in enumerate(first):
        opening = "wte" if s == 0 else f"h{begin}.ln_1" if begin < layers else "ln_f"
        closing = "loss"
        if s + 1 < len(first):  # a first stage may have no layer, a last one the head alone
            closing = f"h{first[s + 1] - 1}.res_2" if first[s + 1] else embedding
        lines.append(f"  - {{ops: ['{opening}..{closing}']}}")
    return "\n".join(lines) + "\n"


# ---- hardware: a description, devices of a node, links. Outside of a node the adapters' rates; inside of it what
# all-reduces reach, which was chosen with the figures that are fitted.

def link(bandwidth, latency):
    return {"bandwidth": f"{bandwidth}GB/s", "latency_us": latency}


HARDWARE = [
    ("*3 x 4 V100*", dict(device=["v100-16gb-sxm"] * 12 + ["t4"] * 4, node=4, adapters=1, intra=link(8, 15),
                          inter=link(1.25, 30))),
    ("*4 x 4 T4*", dict(device="t4", node=4, adapters=1, intra=link(3, 15), inter=link(6.25, 30))),
    ("*V100 16GB x 1*", dict(device="v100-16gb-sxm", node=1, inter=link(1.25, 30))),
    ("A100, *", dict(device="a100-80gb-sxm", node=8, adapters=4, intra=link(250, 5), inter=link(25, 10))),
    ("A100 80GB selene", dict(device="a100-80gb-sxm", node=8, adapters=8, intra=link(250, 5),
                              inter=link(25, 10))),
    ("DGX*H100*", dict(device="h100-80gb-sxm", node=8, adapters=8, intra=link(370, 5), inter=link(50, 10))),
    ("H100 96GB*", dict(device="h100-80gb-sxm", override={"memory": "96GB", "bandwidth": "2400GB/s"}, node=8, adapters=8,
                        intra=link(370, 5), inter=link(50, 10))),
    ("8 x B200*", dict(device="b200-sxm", node=8, adapters=8, intra=link(400, 5), inter=link(50, 10))),
    ("DGX-B200", dict(device="b200-sxm", node=8, adapters=8, intra=link(400, 5), inter=link(50, 10))),
    ("GH200*", dict(device="gh200-96gb", node=4, adapters=4, intra=link(120, 5), inter=link(25, 10))),
]


# Jobs that figures of a description were fitted to; all others are outside of the fit.
FITTED = {"a100-80gb-sxm": ["vtrain-*"], "b200-sxm": ["simumax-b200-llama3_70b*"], "v100-16gb-sxm": ["parcae-gpt-*"],
          "t4": ["amp-homogeneous-04", "amp-homogeneous-21"]}


def device_of(job):
    names = hardware_of(job)["device"]
    return names if isinstance(names, str) else names[0]


def is_fitted(job):
    return any(fnmatch.fnmatch(job["id"], pattern) for pattern in FITTED.get(device_of(job), []))


def band_of(job):
    return yaml.safe_load((DEVICES / f"{device_of(job)}.yaml").read_text()).get("efficiency", {}).get("error", 0)


def hardware_of(job):
    for pattern, found in HARDWARE:
        if fnmatch.fnmatch(job["hardware"], pattern):
            return found
    raise Unsaid(f"no description of {job['hardware'].split(',')[0]}")


def description(name, job, options):
    about = yaml.safe_load((DEVICES / f"{name}.yaml").read_text())
    del about["smp"]
    if options.ideal:
        about.pop("efficiency", None)
        return about
    figures = about.setdefault("efficiency", {})
    figures.update(SCORES[job["software"]["scores"]])
    figures.update(job["software"].get("figures", {}))
    for key, value in options.figures.items():
        if not key.startswith("link_"):
            figures[key] = value
    return about


def cluster_of(job, options):
    hw = hardware_of(job)
    if job["tp"] > hw["node"]:
        raise Unsaid("a tensor group across nodes: NCCL's rings use all adapters of a node, SMP's exchanges do not")
    gpus, node = job["gpus"], min(hw["node"], job["gpus"])
    if gpus % node:
        node = math.gcd(gpus, node)
    names = hw["device"]
    device = [description(n, job, options) for n in names[:gpus]] if isinstance(names, list) else \
        description(names, job, options)
    if not isinstance(device, list):
        device.update(hw.get("override", {}))
    links = {"inter_node": dict(hw["inter"])}
    if "intra" in hw:
        links["intra_node"] = dict(hw["intra"])
    for name, used in links.items():
        factor = options.figures.get("link_" + name, 1)
        used["bandwidth"] = f"{float(used['bandwidth'][:-4]) * factor:.6g}GB/s"
    cluster = {"smp": 1, "name": "measured", "nodes": gpus // node, "devices_per_node": node, "device": device,
               "links": links, "overlap": job["software"]["overlap"]}
    if hw.get("adapters"):
        cluster["adapters_per_node"] = min(hw["adapters"], node)
    return cluster


# ---- jobs

OLD = dict(scores="fused16", dropout=True, overlap=False, buckets=False, whole=True, wire=True, figures={"host_us": 75})
SOFTWARE = {
    # until 2023: attention whose scores are written, dropout, nothing beside compute, calls from Python
    "old": OLD,
    "eager": dict(OLD, scores="eager32", wire=False),
    "new": dict(scores="kept", dropout=False, overlap=True, buckets=True, whole=False, wire=True),
    "serial": dict(scores="kept", dropout=False, overlap=False, buckets=True, whole=False),
}
SOFTWARE_OF = {"vtrain-*": "old", "megatron-lm-*": "old", "amp-*": "old", "parcae-*": "old", "sailor-*": "eager",
               "simumax-*": "serial", "*": "new"}
LEFT_OUT = {
    "elastic-throughput-by-nodes": "throughput of other planners by nodes, no step of a plan",
    "memory-a100": "bytes, no time",
    "kernel-attention-h200": "one operator, no step",
    "sailor-mixed": "cards without a description",
}


def megatron_jobs():
    text = (ROOT / "examples/tensor-cases.sh").read_text()
    sizes = {}
    for names, d, heads, layers in re.findall(r"(\w+)\) echo (\d+) (\d+) (\d+) ;;", text):
        sizes[names] = (int(d), int(heads), int(layers))
    for line in text.split("<<'CASES'\n")[1].split("CASES")[0].splitlines():
        name, gpus, tp, pp, vpp, mbs, gbs, recompute, kind, value = line.split()
        if tp == "auto":
            continue
        gpus, tp, pp, vpp, mbs, gbs, value = *map(int, (gpus, tp, pp, vpp, mbs, gbs)), float(value)
        d, heads, layers = sizes[name]
        s, vocab = 2048, 51200
        flops = gbs * s * layers * (4 * (24 * d * d + 4 * s * d) + 6 * vocab * d / layers)
        step = value if kind == "seconds" else flops / gpus / value / 1e12
        yield dict(id=f"megatron-{name}-{gpus}-{recompute}-{kind}",
                   group="megatron-lm-2022" if kind == "seconds" else "megatron-lm-2021",
                   model=dict(kind="gpt", layers=layers, hidden=d, heads=heads, ffn=4 * d, vocab=vocab, seq=s),
                   hardware="A100 80GB selene", precision="bf16", gpus=gpus, tp=tp, pp=pp, vpp=vpp,
                   dp=gpus // tp // pp, mbs=mbs, gbs=gbs, recompute="full" if recompute == "all" else "selective",
                   measured=dict(step_s=step))


def step_of(job):
    return job["measured"].get("step_s", job["measured"].get("step_s_derived"))


# Shoeybi et al. 2019: two sums of activations a layer, forward and backward.
MEGATRON_SPLIT = ["wte:rows", "*.qkv:columns/3", "*.attn:packed heads", "*.proj:rows", "*.fc:columns", "*.gelu:elements@1",
                  "*.down:rows", "lm_head:columns", "loss:classes", "*.ln_1:whole", "*.ln_2:whole", "ln_f:whole",
                  "*.res_1:whole", "*.res_2:whole", "*.drop_1:whole", "*.drop_2:whole"]


def arguments(job):
    precision = "fp16" if "fp16" in job["precision"] or "T4" in job["hardware"] or "V100" in job["hardware"] else \
        "fp32" if job["precision"].startswith("fp32") else "bf16"
    if "fp8" in job["precision"]:
        raise Unsaid("fp8")
    if job.get("cp") not in (None, 1):
        raise Unsaid("context parallelism")
    mbs = job.get("mbs") or (1 if job.get("local_batch") else None)
    if job["group"] == "torchtitan":
        mbs = job["local_batch"] if job["pp"] == 1 else 1
    if not mbs:
        if job["group"] != "megatron-core-h100-weak":
            raise Unsaid("no micro-batch published")
        mbs = 1
    micro = -(-job["gbs"] // (job["dp"] * mbs))  # some replicas of parcae-v100 have one less
    out = ["-n", job["gpus"], "--device", "cuda", "--precision", precision, "--stages", job["pp"], "--ddp", job["dp"],
           "--tensor", job["tp"], "--chunks", job.get("vpp") or 1, "--microbatches", micro, "--microbatch-size", mbs,
           "--pipeline", "interleaved", "--offload", "none", "--offload-states", "none",
           "--tensor-overlap", "no", "--memory", "1000TB", "--effort", "normal", "--gradient-blocks", job["dp"]]
    if job["software"]["whole"] and job["tp"] > 1 and job["group"] != "megatron-lm-2022":
        for rule in MEGATRON_SPLIT:
            out += ["--split", rule]
        for begin in filter(None, borders(job) or []):  # each device of a group sends its part, which are gathered there
            out += ["--split", f"h{begin - 1}.res_2:elements@0"]
    if job["dp"] > 1 and job["pp"] > 1 and job["software"]["whole"]:  # ranks of Megatron's: tensor, data, pipeline
        out += ["--placement", "spread"]
    if job["software"].get("wire") and job["dp"] > 1:
        out += ["--gradient-wire", "bf16"]
    if not job["software"]["buckets"]:
        out += ["--bucket-bytes", "none"]
    optimizer = "ZeRO-1" in str(job.get("sharding")) or job["group"] == "megatron-core-h100-weak"
    shard = job.get("fsdp") or (job["dp"] if optimizer else 0)
    if shard > 1:
        out += ["--shard", shard, "--shard-what", "optimizer" if optimizer else "weights"]
    else:
        out += ["--shard", 1]
    return [str(word) for word in out]


# Whole layers, not the head; of attention whose scores are written, those alone.
RECOMPUTED = {"full": "['h*.*']", "selective": "['*.attn']"}


def smp(words, folder):
    run = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if not run.stdout or run.returncode not in (0, 2):  # 2: a plan that recomputes otherwise than it says
        raise Unsaid("smp-partition: " + run.stderr.strip().splitlines()[-1].replace(str(folder), "")[:150])
    return run.stdout


def predict(job, options):
    if job["group"] in LEFT_OUT:
        raise Unsaid(LEFT_OUT[job["group"]])
    name = next(n for pattern, n in SOFTWARE_OF.items() if fnmatch.fnmatch(job["group"], pattern))
    job["software"] = SOFTWARE[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        words = arguments(job)
        (folder / "model.yaml").write_text(model_text(job))
        (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster_of(job, options), sort_keys=False))
        sketch = sketch_text(job)
        if sketch:
            (folder / "sketch.yaml").write_text(sketch)
            words += ["--fix", str(folder / "sketch.yaml")]
        again = RECOMPUTED.get(job.get("recompute"))
        if job.get("recompute") == "selective" and job["software"]["scores"] == "kept":
            again = None
        words += ["--recompute", "all" if again else "none"]
        plan = folder / "plan.yaml"
        smp([options.programs / "smp-partition", folder / "model.yaml", "--cluster", folder / "cluster.yaml", *words,
             "-o", plan], folder)
        if again:  # the planner recomputes whole stages; what it predicted is computed again by check
            plan.write_text(plan.read_text().replace("recompute: true", f"recompute: {again}"))
        out = smp([options.programs / "smp-partition", "check", plan, "--memory", "1000TB", "--json"],
                  folder)
        if options.keep:
            kept = options.keep / job["id"]
            kept.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                (kept / path.name).write_text(path.read_text())
            (kept / "options").write_text(" ".join(words).replace(str(folder), ".") + "\n")
        judged = json.loads(out)
        job["peak_gib"] = max(judged["peak_bytes"]) / 2**30
        return judged["step_us"] / 1e6


# ---- tables

def kinds_of(rows):
    """Lists of jobs of one model on as many GPUs with one batch."""
    kinds = {}
    for job, got in rows:
        key = (json.dumps(job["model"], sort_keys=True), job["hardware"], job["gpus"], job["gbs"])
        kinds.setdefault(key, []).append((job, got))
    return list(kinds.values())


def degrees_of(job):
    return f"T{job['tp']} P{job['pp']} x {job.get('vpp') or 1} D{job['dp']}"


def print_choices(groups, options):
    """Which published degrees are taken for the fastest, and how much longer they were measured than the best."""
    print("\n| source | kinds of job | fastest one chosen | regret, mean | worst |\n|---|---|---|---|---|")
    for name, rows in groups.items():
        regrets = []
        for kind in kinds_of(rows):
            chosen = min(kind, key=lambda row: row[1])[0]
            if len(kind) > 1:
                regrets.append(step_of(chosen) / min(step_of(job) for job, _ in kind) - 1)
        if regrets:
            print(f"| {name} | {len(regrets)} | {sum(r == 0 for r in regrets)} | {100 * statistics.mean(regrets):.1f} % "
                  f"| {100 * max(regrets):.1f} % |")
    if not options.choose:
        return
    print("\n| job, the fastest published of its kind | its degrees | predicted s | degrees searched | predicted s | ratio |"
          "\n|---|---|---|---|---|---|")
    for rows in groups.values():
        for kind in kinds_of(rows):
            job, got = min(kind, key=lambda row: step_of(row[0]))
            try:
                degrees, step = search(job, options)
                print(f"| {job['id']} | {degrees_of(job)} | {got:.3g} | {degrees} | {step:.3g} | {got / step:.2f} |",
                      flush=True)
            except Unsaid as cause:
                print(f"| {job['id']} | {degrees_of(job)} | {got:.3g} | none: {cause} | - | - |")


def search(job, options):
    """What the planner takes for the same batch where nothing but the job's software is pinned, in the card's memory."""
    pinned = {"--stages", "--ddp", "--tensor", "--chunks", "--microbatches", "--microbatch-size", "--pipeline", "--memory",
              "--gradient-blocks", "--shard", "--shard-what", "--split", "--placement"}
    words = arguments(job)
    words = [word for i in range(0, len(words), 2) if words[i] not in pinned for word in words[i:i + 2]]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model.yaml").write_text(model_text(job))
        (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster_of(job, options), sort_keys=False))
        plan = folder / "plan.yaml"
        smp([options.programs / "smp-partition", folder / "model.yaml", "--cluster", folder / "cluster.yaml", *words,
             "--global-batch", job["gbs"], "-o", plan], folder)
        made = yaml.safe_load(plan.read_text())
        parallel = made["parallel"]
        job = {"tp": parallel.get("tensor", 1), "pp": parallel["pipeline"], "vpp": parallel.get("chunks"),
               "dp": parallel["ddp"]}
        return degrees_of(job), made["predicted"]["step_us"] / 1e6


def pairs(rows):
    """Of jobs of one kind: right and all pairs that differ by over 3 %."""
    right = total = 0
    for kind in kinds_of(rows):
        jobs = [(step_of(job), got) for job, got in kind]
        for i, (a, x) in enumerate(jobs):
            for b, y in jobs[:i]:
                if max(a, b) > 1.03 * min(a, b):
                    total += 1
                    right += (a > b) == (x > y)
    return right, total


def summary(name, rows):
    ratios = [got / step_of(job) for job, got in rows]
    median = statistics.median(ratios)
    error = statistics.mean(abs(r - 1) for r in ratios)
    after = statistics.mean(abs(r / median - 1) for r in ratios)
    right, total = pairs(rows)
    return (f"| {name} | {len(rows)} | {median:.3f} | {100 * error:.1f} % | {100 * after:.1f} % | "
            f"{right} of {total} |" if total else
            f"| {name} | {len(rows)} | {median:.3f} | {100 * error:.1f} % | {100 * after:.1f} % | - |")


def print_memory(rows):
    """The fullest rank's peak, of jobs that published theirs (PyTorch's allocator, without what it reserves)."""
    print("\n| job | predicted GiB | measured GiB | ratio |\n|---|---|---|---|")
    for job, _ in rows:
        measured = job["measured"].get("peak_gib", job["measured"].get("peak_bytes", 0) / 2**30)
        if measured:
            print(f"| {job['id']} | {job['peak_gib']:.1f} | {measured:.1f} | {job['peak_gib'] / measured:.2f} |")


def print_bands(rows):
    """Of jobs that no figure was fitted to: errors, and how many lie in the band that plans print."""
    print("\n| device | jobs outside of the fit | mean error | band | inside |\n|---|---|---|---|---|")
    devices = {}
    for job, got in rows:
        if not is_fitted(job):
            devices.setdefault(device_of(job), []).append((job, got / step_of(job)))
    for name, found in devices.items():
        band = band_of(found[0][0])
        inside = f"{sum(1 / (1 + band) <= ratio <= 1 + band for _, ratio in found)} of {len(found)}"
        print(f"| {name} | {len(found)} | {100 * statistics.mean(abs(r - 1) for _, r in found):.1f} % | "
              f"+-{100 * band:.0f} % | {inside} |" if band else
              f"| {name} | {len(found)} | {100 * statistics.mean(abs(r - 1) for _, r in found):.1f} % | none | - |")


def parser():
    made = argparse.ArgumentParser(description="Published steps beside predictions.")
    made.add_argument("programs", type=pathlib.Path)
    made.add_argument("configs", type=pathlib.Path)
    made.add_argument("--ideal", action="store_true", help="devices at their peaks")
    made.add_argument("--only", default="*", metavar="PATTERN,...", help="groups or jobs")
    made.add_argument("--rows", action="store_true", help="a line for each job")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    made.add_argument("--choose", action="store_true", help="plan each kind of job freely, too")
    made.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="files and options of each job")
    made.add_argument("--json", type=pathlib.Path, metavar="FILE")
    return made


def finish(options):
    options.figures = {key: float(value) for key, value in (change.split("=") for change in options.set)}
    options.programs = options.programs.resolve()
    return options


def all_jobs(options):
    jobs = [*megatron_jobs(), *yaml.safe_load(options.configs.read_text())["configs"]]
    patterns = options.only.split(",")
    return [j for j in jobs if any(fnmatch.fnmatch(j[key], p) for p in patterns for key in ("group", "id"))]


def predict_all(jobs, options):
    """Job, prediction in seconds or None, why there is none."""
    def one(job):
        try:
            return job, predict(job, options), None
        except Unsaid as cause:
            return job, None, str(cause)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, jobs))


def main():
    options = finish(parser().parse_args())
    results = predict_all(all_jobs(options), options)
    groups, left_out = {}, {}
    for job, got, cause in results:
        if got is None:
            left_out.setdefault(f"{job['group']}: {cause}", []).append(job["id"])
        else:
            groups.setdefault(job["group"], []).append((job, got))
    if options.rows:
        print("| job | degrees | predicted s | measured s | ratio |\n|---|---|---|---|---|")
        for job, got, _ in results:
            if got is not None:
                print(f"| {job['id']} | {degrees_of(job)} | {got:.4g} | {step_of(job):.4g} | {got / step_of(job):.3f} |")
        print()
    print("| source | jobs | median | mean error | after one factor | pairs in order |\n|---|---|---|---|---|---|")
    for name, rows in groups.items():
        print(summary(name, rows))
    everything = [row for rows in groups.values() for row in rows]
    if everything:
        print(summary("all", everything))
    print_choices(groups, options)
    if not options.ideal:
        print_bands(everything)
    if options.rows:
        print_memory(everything)
    for cause, ids in left_out.items():
        print(f"\nleft out, {len(ids)}: {cause}")
    if options.json:
        options.json.write_text(json.dumps([{"id": j["id"], "group": j["group"], "predicted": g, "measured": step_of(j)}
                                            for j, g, _ in results if g is not None], indent=0) + "\n")


if __name__ == "__main__":
    sys.exit(main())
