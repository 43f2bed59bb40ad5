"""smp_torch.parallelize: classes of transformers in a training loop as a user has one, on two and four processes: losses,
clipped gradients' norms and the state afterwards are those of one process; saved, by torch.distributed.checkpoint too, and
loaded again. The script of the README runs."""

import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.nn import functional

import smp_torch.self_check
from forks import in_a_fork, run_ranks
from zoo import DECODERS, TRANSLATORS, of_transformers

STEPS, MICROBATCHES, SIZE, LENGTH, VOCABULARY = 3, 4, 2, 8, 64
MOST = 1e-9  # in double


def gpt2():
    """Makes its loss of its arguments; tied."""
    module = of_transformers(*DECODERS["gpt2"]).double()
    module.config.use_cache = True  # as a user has it
    return module, lambda batch: {"input_ids": batch, "labels": batch}, lambda output: output.loss


def t5():
    """Two inputs by name, and a loss of the user's."""
    module = of_transformers(*TRANSLATORS["t5"]).double()

    def loss(output, target):
        return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())

    return module, lambda batch: {"input_ids": batch, "decoder_input_ids": batch.flip(1)}, loss


MODELS = {"gpt2": (gpt2, False), "t5": (t5, True)}


def make(name):
    torch.manual_seed(7)
    return MODELS[name][0]()


def batches(replicas):
    torch.manual_seed(8)
    return [torch.randint(3, VOCABULARY, (replicas * MICROBATCHES * SIZE, LENGTH)) for _ in range(STEPS)]


def optimizer_of(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def alone(name, replicas):
    """Losses and norms of one process that goes through the micro-batches in turn, and the state afterwards."""
    module, named, loss_fn = make(name)
    optimizer, scheduler = optimizer_of(module.parameters())
    said = []
    for batch in batches(replicas):
        total = 0.0
        for part in batch.split(SIZE):
            output = module(**named(part))
            loss = loss_fn(output, part) if MODELS[name][1] else loss_fn(output)
            (loss / (replicas * MICROBATCHES)).backward()
            total += loss.item() / (replicas * MICROBATCHES)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        said.append((total, norm.item()))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return said, module.state_dict()


def rank(name, options, folder, replicas):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module, named, loss_fn = make(name)
    if dist.get_rank() > 0:  # who forgot the seed gets those of the first process
        with torch.no_grad():
            for p in module.parameters():
                p.add_(1)
    if name == "t5":  # as of a large module, some of whose gradients are compared
        smp_torch.self_check.LARGE = 0
    target = batches(1)[0][:SIZE] if MODELS[name][1] else None
    example = named(batches(1)[0][:SIZE])
    model = smp_torch.parallelize(module, example, loss_fn, target=target, budget_s=0.1,
                                  options=["--microbatches", str(MICROBATCHES), "--time-limit", "0.1", "--partitioner", "equal-parameters", *options])
    optimizer, scheduler = optimizer_of(model.parameters())
    said = []
    for batch in batches(replicas):
        own = batch.chunk(replicas)[model.replica]
        loss = model.step(named(own), own if target is not None else None)
        said.append((loss.item(), model.clip_grad_norm_(0.5).item()))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    state = model.state_dict()
    checkpoint.save({"model": model.state_dict(whole=False)}, checkpoint_id=f"{folder}/checkpoint")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    own = {"model": model.state_dict(whole=False)}
    checkpoint.load(own, checkpoint_id=f"{folder}/checkpoint")
    model.load_state_dict(own["model"])
    loaded = model.state_dict()
    model.load_state_dict(state)
    again = model.state_dict()
    same = all(torch.equal(x, loaded[n]) and torch.equal(x, again[n]) for n, x in state.items())
    try:
        model.step(named(batches(1)[0][:SIZE]), target)
    except ValueError as error:
        refused = str(error)
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/state")
        print(json.dumps({"said": said, "same": same, "refused": refused}))
    dist.barrier()
    dist.destroy_process_group()


def check(name, ranks, replicas, *options):
    with tempfile.TemporaryDirectory() as folder:
        code, output, errors = run_ranks(ranks, rank, name, options, folder, replicas)
        if code:
            sys.exit(f"{name} on {ranks} ranks: {output}{errors[-3000:]}")
        found = json.loads(output.splitlines()[-1])
        state = torch.load(f"{folder}/state")
    wanted, expected = made[name, replicas]
    if list(state) != list(expected):
        sys.exit(f"{name}: names {set(state) ^ set(expected)}")
    worst = max((state[n].double() - x.double()).abs().max().item() for n, x in expected.items())
    apart = max(abs(a - b) for a, b in zip(torch.tensor(found["said"]).flatten(), torch.tensor(wanted).flatten()))
    print(f"{name}, {ranks} ranks {' '.join(options)}: losses and norms {apart:.2g} apart, state {worst:.2g}", flush=True)
    if apart > MOST or worst > MOST or not found["same"] or len(found["said"]) != STEPS:
        sys.exit(f"{found}, expected {wanted}")
    if "expected 4 micro-batches of 2 samples, 8" not in found["refused"] or ("use_cache" in output) != (name == "gpt2"):
        sys.exit(f"{found['refused']}\n{output}")


def readme(folder):
    """Its first script, measured for a shorter time."""
    with open(os.path.join(os.path.dirname(smp_torch.__path__[0]), "README.md"), encoding="utf-8") as file:
        script = file.read().split("```python\n")[1].split("```")[0]
    call = smp_torch.parallelize
    smp_torch.parallelize = lambda *args, options: call(*args, options=[*options, "--time-limit", "0.1"], budget_s=0.2)
    torch.set_num_threads(1)
    os.chdir(folder)
    exec(compile(script, "README.md", "exec"), {})


CASES = [("gpt2", 2, 1, "--stages", "2", "--chunks", "2"), ("gpt2", 4, 2, "--stages", "2", "--shard", "2"),
         ("t5", 2, 1, "--stages", "2", "--pipeline", "zero-bubble"), ("t5", 4, 2, "--stages", "2", "--shard", "1")]
if not os.environ.get("SMP_TEST_LONG"):
    CASES = CASES[1:3]
warnings.filterwarnings("ignore")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
made = {}


def references():
    return {(name, replicas): alone(name, replicas) for name, _, replicas, *_ in CASES}


with tempfile.TemporaryDirectory() as scratch:
    made.update(in_a_fork(references))
    code, output, errors = run_ranks(2, readme, scratch)
    if code or "step 3: loss" not in output or "lm_head.weight" not in torch.load(f"{scratch}/gpt2.pt"):
        sys.exit(f"README.md: {output}{errors[-3000:]}")
for case in CASES:
    check(*case)
