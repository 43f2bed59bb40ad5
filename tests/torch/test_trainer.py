"""examples/pytorch/trainer.py: transformers' Trainer on two and four processes logs the losses and norms of the plain one on one
process, evaluates and saves its weights, and goes on from a checkpoint."""

import importlib.util
import json
import os
import sys
import tempfile
import warnings

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
if not all(importlib.util.find_spec(name) for name in ("accelerate", "transformers")):
    print("skipped: no accelerate and transformers beside PyTorch (tests/torch/peers.txt)")
    sys.exit(77)

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer, TrainingArguments

from forks import in_a_fork, run_ranks
from trainer import PipelineTrainer
from zoo import DECODERS, of_transformers

MICROBATCHES, SIZE, LENGTH, VOCABULARY, STEPS = 2, 2, 8, 64, 4
CASES = {  # name: ranks, replicas, bf16, how far apart (Trainer adds up losses in fp32), words for smp-partition
    "2 stages": (2, 1, False, 1e-6, ["--stages", "2"]),
    "2 replicas, shards": (4, 2, False, 1e-6, ["--stages", "2", "--shard", "2"]),
    "2 stages, bf16": (2, 1, True, 1e-2, ["--stages", "2"]),
}
if not os.environ.get("SMP_TEST_LONG"):
    CASES = {name: CASES[name] for name in ("2 replicas, shards",)}


def make(bf16):
    torch.manual_seed(7)
    module = of_transformers(*DECODERS["gpt2"])
    rows = torch.randint(3, VOCABULARY, (24, LENGTH))
    data = [{"input_ids": row, "labels": row, "number": i} for i, row in enumerate(rows)]  # no argument of the module
    return (module if bf16 else module.double()).eval(), data


def arguments(folder, bf16, **more):
    return TrainingArguments(folder, use_cpu=True, bf16=bf16, max_steps=STEPS, learning_rate=1e-3, logging_steps=1,
                             save_steps=STEPS // 2, max_grad_norm=0.5, eval_strategy="steps", eval_steps=STEPS, seed=3,
                             report_to=[], disable_tqdm=True, warmup_steps=1, weight_decay=0.1, **more)


class Plain(Trainer):
    """With the order of a DistributedSampler, in one long epoch."""

    def get_train_dataloader(self):
        replicas = self.args.gradient_accumulation_steps // MICROBATCHES
        collate, batches = self._get_collator_with_removed_columns(self.data_collator), []
        for replica in range(replicas):
            sampler, own = DistributedSampler(self.train_dataset, replicas, replica, seed=self.args.seed), []
            for epoch in range(2):
                sampler.set_epoch(epoch)
                own += DataLoader(self.train_dataset, MICROBATCHES * SIZE, sampler=sampler, drop_last=True, collate_fn=collate)
            batches.append(own)
        parts = [{k: v[i:i + SIZE] for k, v in batch.items()} for step in zip(*batches) for batch in step
                 for i in range(0, MICROBATCHES * SIZE, SIZE)]
        return DataLoader(parts, None)


def said(trainer):
    """Loss, norm and learning rate of each step; the loss of the evaluation."""
    steps = [[x["loss"], x["grad_norm"], x["learning_rate"]] for x in trainer.state.log_history if "loss" in x]
    return steps, [x["eval_loss"] for x in trainer.state.log_history if "eval_loss" in x]


def alone(name, folder):
    _, replicas, bf16, _, _ = CASES[name]
    module, data = make(bf16)
    trainer = Plain(module, arguments(folder, bf16, per_device_train_batch_size=SIZE,
                                      gradient_accumulation_steps=replicas * MICROBATCHES),
                    train_dataset=data, eval_dataset=data[:8])
    trainer.model_accepts_loss_kwargs = False  # the module's mean; else Trainer counts the token that is not predicted
    trainer.train()
    return *said(trainer), module.state_dict()


def rank(name, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    os.environ.update(RANK=str(dist.get_rank()), LOCAL_RANK=str(dist.get_rank()), WORLD_SIZE=str(dist.get_world_size()),
                      LOCAL_WORLD_SIZE=str(dist.get_world_size()), MASTER_ADDR="localhost")
    _, _, bf16, _, options = CASES[name]

    def train(plan=None, **how):
        module, data = make(bf16)
        trainer = PipelineTrainer(
            module, arguments(folder, bf16, per_device_train_batch_size=MICROBATCHES * SIZE), train_dataset=data,
            eval_dataset=data[:8], microbatches=MICROBATCHES, plan=plan,
            options=["--time-limit", "0.1", "--partitioner", "equal-parameters", *options])
        if not trainer.model.training:
            sys.exit("what is trained was traced in eval()")
        trainer.train(**how)
        return trainer

    module, data = make(bf16)
    try:
        PipelineTrainer(module, arguments(folder, bf16), train_dataset=data, eval_dataset=data, microbatches=1,
                        compute_loss_func=print)
    except ValueError as error:
        refused = str(error)
    if "compute_loss_func" not in refused:
        sys.exit(refused)
    whole = train()
    state = whole.parallel.state_dict()
    half = f"{folder}/checkpoint-{STEPS // 2}"
    again = whole if bf16 else train(f"{half}/plan.json", resume_from_checkpoint=half)
    resumed = again.parallel.state_dict()
    whole.state.best_model_checkpoint = half
    whole._load_best_model()
    best = whole.parallel.state_dict()
    if dist.get_rank() == 0:
        same = max((resumed[n] - x).abs().max().item() for n, x in state.items())
        off = 0.0
        for place, loaded in ((f"{folder}/checkpoint-{STEPS}", resumed), (half, best)):
            saved = type(again.model).from_pretrained(place).state_dict()
            off = max(off, *((saved[n] - x).abs().max().item() for n, x in loaded.items()))
        torch.save(state, f"{folder}/state")
        print(json.dumps([*said(whole), same, off]))
    dist.barrier()
    dist.destroy_process_group()


def references(folder):
    return {name: alone(name, folder) for name in CASES}


def check(name, folder, steps, evaluated, expected):
    code, output, errors = run_ranks(CASES[name][0], rank, name, folder)
    if code:
        sys.exit(f"{name}: {output}{errors[-3000:]}")
    found, found_evaluated, same, off = json.loads(output.splitlines()[-1])
    state = torch.load(f"{folder}/state")
    apart = (torch.tensor(found) - torch.tensor(steps)).abs().max().item()
    worst = max((state[n] - x).abs().max().item() for n, x in expected.items())
    print(f"{name}: losses and norms {apart:.2g} apart, weights {worst:.2g}, resumed {same:.2g}, saved {off:.2g}", flush=True)
    evaluation = abs(found_evaluated[0] - evaluated[0])
    if len(found) != STEPS or max(apart, worst, evaluation, same) > CASES[name][3] or off > 1e-6:
        sys.exit(f"{found} {found_evaluated}, expected {steps} {evaluated}")


warnings.filterwarnings("ignore")
with tempfile.TemporaryDirectory() as scratch:
    made = in_a_fork(references, scratch)
    for case in CASES:
        check(case, tempfile.mkdtemp(dir=scratch), *made[case])
