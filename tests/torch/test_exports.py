"""Exports read by those for whom they are: PyTorch runs the schedule, torchtitan splits its debug model by the module names
beside it, Megatron-LM's parser takes the layout, DeepSpeed's PipelineModule the parts; each stage holds what the plan says.
Those that are not installed are left out, but not in the long run (SMP_TEST_LONG=1)."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest.mock

import torch

from forks import run_ranks
from run_schedules import run_schedules, stage_ranks
from smp_torch.plan import read_plan
from smp_torch.planner import find_planner

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "examples", "gpt-tiny.yaml")
LONG = bool(os.environ.get("SMP_TEST_LONG"))
SEARCH_S = "2" if LONG else "0.2"
LAYERS = 6  # of torchtitan's debug model


def write_model(folder):
    path = f"{folder}/model.yaml"
    with open(MODEL, encoding="utf-8") as file:
        text = file.read()
    if "layers: 4," not in text:
        sys.exit(f"{MODEL}: expected layers: 4")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("layers: 4,", f"layers: {LAYERS},"))
    return path


def export(model, folder, formats, *options):
    """format -> path of its file, and the plan"""
    paths = {f: f"{folder}/{f}" for f in (*formats, "json")}
    command = [find_planner(), model, "--ddp", "1", "--microbatches", "4", "--cut-at", "layers", "--time-limit", SEARCH_S,
               *options]
    for f, path in paths.items():
        command += ["--export", f"{f}:{path}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{options}: {result.stderr}")
    return paths, read_plan(paths["json"])


def units_of(ops):
    """What a stage holds by the names of its operators: embedding, numbers of layers, head."""
    layers = sorted({int(name.split(".")[0][1:]) for name in ops if name[0] == "h" and name[1].isdigit()})
    return "wte" in ops, layers, "loss" in ops


def check_schedule(paths, plan):
    """PyTorch runs it, of as many parts as the names say."""
    with open(paths["torchtitan"], encoding="utf-8") as file:
        names = json.load(file)
    csv = paths["torchtitan"] + ".csv"
    _, output, errors = run_ranks(2, run_schedules, len(names), plan.microbatches, "compute_only", [csv], seconds=120)
    if f"ended {csv}" not in output:
        sys.exit(f"torchtitan: the schedule does not run:\n{errors[-3000:]}")
    if [s for s, _ in sorted(stage_ranks(csv).items())] != list(range(len(names))) or len(names) != len(plan.stages):
        sys.exit(f"torchtitan: {len(names)} parts, the plan has {len(plan.stages)} stages, the schedule {stage_ranks(csv)}")
    for stage, part in enumerate(names):
        embedding, layers, head = units_of(plan.stages[stage])
        wanted = [*["tok_embeddings"] * embedding, *(f"layers.{i}" for i in layers), *["norm", "lm_head"] * head]
        if sorted(part) != sorted(wanted):
            sys.exit(f"torchtitan: stage {stage}: got {part}, expected {wanted}")
    print(f"torchtitan: {len(names)} model parts, the schedule runs")


@functools.cache
def import_torchtitan():
    """Its kernels for GPUs, which are not run, want triton (1 GB), for which PyTorch is to have looked before."""
    importlib.import_module("torch._inductor.compile_fx")
    missing = () if importlib.util.find_spec("triton") else ("triton", "triton.language")
    sys.modules.update({name: unittest.mock.MagicMock() for name in missing})
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping, _split_module
    from torchtitan.models.llama3 import model_registry

    for name in missing:
        del sys.modules[name]
    return _get_pp_rank_to_stage_indices_mapping, _split_module, model_registry


def check_torchtitan(paths, plan, schedule):
    stages_of, split_module, model_registry = import_torchtitan()
    with open(paths["torchtitan"], encoding="utf-8") as file:
        names = json.load(file)
    with torch.device("meta"):
        whole = model_registry("debugmodel", attn_backend="flex").model.build()
    for stage, part in enumerate(split_module(whole, modules) for modules in names):
        embedding, layers, head = units_of(plan.stages[stage])
        kept = [i for i in range(LAYERS) if f"layers.{i}" in names[stage]]
        got = (part.tok_embeddings is not None, len(part.layers), part.norm is not None and part.lm_head is not None)
        if got != (embedding, len(layers), head) or kept != layers:
            sys.exit(f"torchtitan: stage {stage} of {names}: got {got} {kept}, expected {embedding, layers, head}")
    for rank in range(plan.pipeline):
        mine = stages_of(rank, plan.pipeline, schedule, len(names))
        if sorted(mine) != [s for s, r in enumerate(plan.ranks) if r == rank]:
            sys.exit(f"torchtitan: rank {rank}: got stages {mine}, the plan says {plan.ranks}")
    print(f"torchtitan: {len(names)} model parts of {schedule}")


def check_megatron(model, folder):
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    paths, plan = export(model, folder, ["megatron-layout"], "-n", "2", "--stages", "2", "--chunks", "2", "--pipeline",
                         "interleaved")
    with open(paths["megatron-layout"], encoding="utf-8") as file:
        layout = PipelineParallelLayerLayout.from_str(file.read().strip(), plan.pipeline)
    layout.validate_layer_layout(num_layers=LAYERS, mtp_num_layers=None)
    for stage, rank in enumerate(plan.ranks):
        held = layout.layout[rank][stage // plan.pipeline]
        embedding, layers, head = units_of(plan.stages[stage])
        got = (LayerType.embedding in held, held.count(LayerType.decoder), LayerType.loss in held)
        if got != (embedding, len(layers), head):
            sys.exit(f"Megatron-LM: stage {stage}: got {got}, expected {embedding, layers, head}")
    print(f"Megatron-LM: {layout.input_data if hasattr(layout, 'input_data') else layout}")


def check_deepspeed(model, folder):
    paths, plan = export(model, folder, ["deepspeed-parts"], "-n", "2", "--stages", "2", "--chunks", "1", "--pipeline",
                         "interleaved")
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                             f"{HERE}/deepspeed_parts.py", paths["deepspeed-parts"], str(LAYERS + 2)], capture_output=True,
                            text=True, timeout=400, check=False)
    counts = [len(units_of(ops)[1]) + units_of(ops)[0] + units_of(ops)[2] for ops in plan.stages]
    wanted = [f"stage {s}: {sum(counts[:s])} to {sum(counts[:s + 1])}" for s in range(2)]
    got = sorted(line for line in result.stdout.splitlines() if line.startswith("stage "))
    if got != wanted:
        sys.exit(f"DeepSpeed: got {got}, expected {wanted}\n{result.stderr[-3000:]}")
    print(f"DeepSpeed: {', '.join(got)}")


def installed(name):
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"no {name}: left to the long run (SMP_TEST_LONG)")
        if LONG:
            sys.exit(f"{name} is not installed (tests/torch/peers-long.txt)")
    return found


def main():
    peers = os.environ.get("SMP_TORCH_PEERS")
    if peers is None:
        print("skipped: no peers (tests/torch/peers.txt)")
        sys.exit(77)
    sys.path.append(peers)
    os.environ["PYTHONPATH"] += os.pathsep + peers
    os.environ["DS_ACCELERATOR"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(folder)
        two = ["-n", "2", "--stages", "2", "--chunks", "2", "--pipeline"]
        for pipeline, schedule in (("interleaved", "PipelineScheduleMulti"), ("zero-bubble", "ZBVZeroBubble")):
            paths, plan = export(model, folder, ["torchtitan"], *two, pipeline)
            check_schedule(paths, plan)
            if installed("torchtitan"):
                check_torchtitan(paths, plan, schedule)
        if installed("megatron"):
            check_megatron(model, folder)
        if installed("deepspeed"):
            check_deepspeed(model, folder)


main()
