"""One process of `python -m smp_torch run`."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from . import build
from .devices import KINDS, kind_of
from .plan import read_plan
from .run import make

WARM_UP = 2  # steps that are not counted


class Clock:
    """What the stages of this process take for a micro-batch, messages left out."""

    def __init__(self, stages, schedule, microbatches):
        self.kind, self.stamps = kind_of(stages[0].device), []
        self.spent = {s.stage_index: {"forward_us": 0.0, "backward_us": 0.0} for s in stages}
        self.microbatches = microbatches
        for stage in stages:
            self._wrap(stage, "forward_one_chunk", stage.stage_index, "forward_us")
            self._wrap(stage, "backward_one_chunk", stage.stage_index, "backward_us")
            self._wrap(stage, "backward_weight_one_chunk", stage.stage_index, "backward_us")
            if stage.is_last:
                self._wrap(schedule, "_compute_loss", stage.stage_index, "forward_us")

    def _wrap(self, owner, name, stage, part):
        call = getattr(owner, name)

        def timed(*args, **kwargs):
            start = self.kind.stamp()
            made = call(*args, **kwargs)
            self.stamps.append((stage, part, start, self.kind.stamp()))
            return made

        setattr(owner, name, timed)

    def reset(self):
        self.stamps.clear()
        for spent in self.spent.values():
            spent.update(forward_us=0.0, backward_us=0.0)

    def read(self):
        """After synchronize()."""
        for stage, part, start, end in self.stamps:
            self.spent[stage][part] += self.kind.us(start, end)
        self.stamps.clear()

    def per_microbatch(self, steps):
        return {s: {part: us / (steps * self.microbatches) for part, us in spent.items()}
                for s, spent in self.spent.items()}


def train(spec, plan, device, steps, lr, seed):
    """Returns the microseconds of each step, the losses on the process that has the last stage, and what its stages take."""
    module, args, loss_fn, target = make(spec, seed, device)
    stages, schedule = build(module, plan, args, loss_fn, device=device)
    parameters = [p for p in schedule.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr) if parameters else None
    first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    batch = tuple(torch.cat([x] * plan.microbatches) for x in args)
    batch_target = torch.cat([target] * plan.microbatches)
    times, curve = [], []
    clock = Clock(stages, schedule, plan.microbatches)
    for step in range(steps + WARM_UP):
        if step == WARM_UP:
            clock.reset()
        dist.barrier()
        start = time.perf_counter()
        losses = []
        given = {"target": batch_target, "losses": losses} if last else {}
        schedule.step(*(batch if first else ()), **given, return_outputs=False)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        clock.kind.synchronize()
        clock.read()
        dist.barrier()
        if step >= WARM_UP:
            times.append(1e6 * (time.perf_counter() - start))
        if last:
            curve.append(statistics.fmean(loss.item() for loss in losses))
            if step in (0, steps + WARM_UP - 1):
                print(f"step {step + 1}: loss {curve[-1]:.6g}", flush=True)
    return times, curve, clock.per_microbatch(steps)


def main():
    spec, path, name, steps, lr, seed, threads, output = sys.argv[1:]
    torch.set_num_threads(int(threads))
    kind = KINDS[name]
    device = kind.place()
    dist.init_process_group(kind.backend)
    plan = read_plan(path)
    times, curve, took = train(spec, plan, device, int(steps), float(lr), int(seed))
    measured = statistics.median(times)
    report = [None] * dist.get_world_size()
    dist.all_gather_object(report, (curve, took))
    stages = {s: spent for _, own in report for s, spent in own.items()}  # of one of the replicas
    if dist.get_rank() == 0:
        predicted = plan.predicted.get("step_us", 0)
        samples = plan.microbatches * plan.microbatch_size * plan.ddp
        print(f"step {measured / 1e3:.1f} ms, {1e6 * samples / measured:.1f} samples/s, predicted {predicted / 1e3:.1f} ms "
              f"({100 * (predicted / measured - 1):+.1f} %)", flush=True)
        if output:
            with open(output, "w", encoding="utf-8") as file:
                json.dump({"step_us": measured, "predicted_us": predicted, "samples_per_s": 1e6 * samples / measured,
                           "steps_us": times, "loss": next(c for c, _ in report if c),
                           "stages": [stages[s] for s in sorted(stages)]}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
