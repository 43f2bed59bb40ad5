"""Exports read by those for whom they are: torchtitan splits its debug model by the module names and PyTorch runs the schedule
beside them, Megatron-LM's parser takes the layout, DeepSpeed's PipelineModule the parts; each stage holds what the plan says."""

import json
import os
import subprocess
import sys
import tempfile

import torch

from smp_torch.plan import read_plan
from smp_torch.planner import find_planner

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "examples", "gpt-tiny.yaml")
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
    command = [find_planner(), model, "--ddp", "1", "--microbatches", "4", "--cut-at", "layers", "--time-limit", "2", *options]
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


def check_torchtitan(model, folder, options, schedule):
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping, _split_module
    from torchtitan.models.llama3 import model_registry

    paths, plan = export(model, folder, ["torchtitan"], *options)
    with open(paths["torchtitan"], encoding="utf-8") as file:
        names = json.load(file)
    with torch.device("meta"):
        whole = model_registry("debugmodel", attn_backend="flex").model.build()
    for stage, part in enumerate(_split_module(whole, modules) for modules in names):
        embedding, layers, head = units_of(plan.stages[stage])
        kept = [i for i in range(LAYERS) if f"layers.{i}" in names[stage]]
        got = (part.tok_embeddings is not None, len(part.layers), part.norm is not None and part.lm_head is not None)
        if got != (embedding, len(layers), head) or kept != layers:
            sys.exit(f"torchtitan: stage {stage} of {names}: got {got} {kept}, expected {embedding, layers, head}")
    for rank in range(plan.pipeline):
        mine = _get_pp_rank_to_stage_indices_mapping(rank, plan.pipeline, schedule, len(names))
        if sorted(mine) != [s for s, r in enumerate(plan.ranks) if r == rank]:
            sys.exit(f"torchtitan: rank {rank}: got stages {mine}, the plan says {plan.ranks}")
    csv = paths["torchtitan"] + ".csv"
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                             f"{HERE}/run_schedules.py", str(len(names)), str(plan.microbatches), "compute_only", csv],
                            capture_output=True, text=True, timeout=120, check=False)
    if f"ended {csv}" not in result.stdout:
        sys.exit(f"torchtitan: the schedule does not run:\n{result.stderr[-3000:]}")
    print(f"torchtitan: {len(names)} model parts of {schedule}, the schedule runs")


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


def main():
    peers = os.environ.get("SMP_TORCH_PEERS")
    if peers is None:
        print("skipped: torchtitan, Megatron-LM and DeepSpeed are not installed")
        sys.exit(77)
    sys.path.append(peers)
    os.environ["PYTHONPATH"] += os.pathsep + peers
    os.environ["DS_ACCELERATOR"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(folder)
        two = ["-n", "2", "--stages", "2"]
        check_torchtitan(model, folder, [*two, "--chunks", "2", "--pipeline", "interleaved"], "PipelineScheduleMulti")
        check_torchtitan(model, folder, [*two, "--chunks", "2", "--pipeline", "zero-bubble"], "ZBVZeroBubble")
        check_megatron(model, folder)
        check_deepspeed(model, folder)


main()
