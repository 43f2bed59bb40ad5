"""transformers' Trainer with the module split over the processes that torchrun started:

    trainer = PipelineTrainer(module, TrainingArguments(...), train_dataset=data, microbatches=8, options=["--stages", "2"])
    trainer.train()

`per_device_train_batch_size` are the samples that a replica takes for a step, all micro-batches together; the loss is the mean
that the module makes of each. Evaluation runs the whole module in each process. To go on from a checkpoint takes the plan that it
was made with: plan="CHECKPOINT/plan.json".
"""

import json
import os

import torch
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer

import smp_torch


class PipelineTrainer(Trainer):
    def __init__(self, *args, microbatches, options=(), plan=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # the mean is the module's, in evaluation too
        if self.args.fp16:
            raise ValueError("fp16: its gradient scaler knows one process alone; take bf16")
        size, rest = divmod(self.args.per_device_train_batch_size, microbatches)
        if rest or self.args.gradient_accumulation_steps != 1:
            raise ValueError(f"{self.args.per_device_train_batch_size} samples are no {microbatches} micro-batches, or gradients "
                             "are accumulated: micro-batches are what that is for")
        if self.label_smoother is not None or self.compute_loss_func is not None:
            raise ValueError("label_smoothing_factor, compute_loss_func: the loss is the module's own")
        self._collate = self._get_collator_with_removed_columns(self.data_collator)
        example = self._prepare_inputs(self._collate([self.train_dataset[i] for i in range(size)]))
        self.model.train()  # as what is traced stays; from_pretrained() returns it in eval()
        with self.accelerator.autocast():
            self.parallel = smp_torch.parallelize(self.model, dict(example), lambda output: output.loss, plan,
                                                  options=["--microbatches", str(microbatches), *options])

    def get_train_dataloader(self):
        sampler = DistributedSampler(self.train_dataset, self.parallel.replicas, self.parallel.replica, seed=self.args.seed)
        return DataLoader(self.train_dataset, self.parallel.batch_size, sampler=sampler, drop_last=True,
                          num_workers=self.args.dataloader_num_workers, collate_fn=self._collate)

    def _run_epoch(self, *, epoch, train_dataloader, **more):
        train_dataloader.sampler.set_epoch(epoch)  # another order in each
        super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **more)

    def _wrap_model(self, model, training=True, dataloader=None):
        return self.parallel if training else model

    def get_decay_parameter_names(self, model):
        return super().get_decay_parameter_names(self.model)

    def create_optimizer(self, model=None):
        return super().create_optimizer(self.parallel)

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.accelerator.autocast():
            return self.parallel.step(dict(self._prepare_inputs(inputs)), seed=(self.args.seed << 32) + self.state.global_step)

    def _clip_grad_norm(self, model):
        return self.parallel.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model, grad_norm=None):
        return self.parallel.clip_grad_norm_(float("inf")) if grad_norm is None else grad_norm

    def evaluation_loop(self, *args, **kwargs):
        self.model.load_state_dict(self.parallel.state_dict())
        return super().evaluation_loop(*args, **kwargs)

    def _load_best_model(self):
        super()._load_best_model()
        self.parallel.load_state_dict(self.model.state_dict())

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, self.parallel.state_dict())

    def _save_optimizer_and_scheduler(self, output_dir):
        os.makedirs(output_dir, exist_ok=True)
        state = (self.parallel.plan.data, self.optimizer.state_dict(), self.lr_scheduler.state_dict())
        torch.save(state, f"{output_dir}/training-{self.args.process_index}.pt")
        if self.args.should_save:
            with open(f"{output_dir}/plan.json", "w", encoding="utf-8") as file:
                json.dump(self.parallel.plan.data, file)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None:
            plan, optimizer, scheduler = torch.load(f"{checkpoint}/training-{self.args.process_index}.pt")
            if plan != self.parallel.plan.data:
                raise ValueError(f"{checkpoint} was made with another plan: give PipelineTrainer plan='{checkpoint}/plan.json'")
            self.parallel.load_state_dict(self.model.state_dict())
            self.optimizer.load_state_dict(optimizer)
            self.lr_scheduler.load_state_dict(scheduler)
