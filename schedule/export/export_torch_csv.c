/* torch-csv: the schedule as torch.distributed.pipelining reads it. A row per pipeline rank, a cell
 * per compute action in the order in which the rank runs them: stage index, action, micro-batch, as
 * in 2F0 (forward), 2B0 (full backward), 2I0 and 2W0 (its halves). Sends and receives are added by
 * the reader. (PyTorch 2.6 and later, torch/distributed/pipelining/schedules.py: _Action.from_str,
 * _PipelineScheduleRuntime._load_csv.)
 *
 * On the other side, one process per pipeline rank with its PipelineStage objects:
 *
 *     from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
 *     schedule = _PipelineScheduleRuntime(stages, n_microbatches=M, loss_fn=loss_fn)
 *     schedule._load_csv("plan.csv")          # format="compute_only" is the default
 *     schedule.step(x, target=y)
 *
 * torch-stages says which ops each stage is made of: a CSV row per stage with its index, its rank
 * and its op names in order. Stage s of the model is built from row s. There tensors move between
 * neighbouring stages only: one that jumps over stages here is passed along by the stages between
 * (torch.distributed.pipelining.pipeline does so by itself). Of a model whose ops are split over
 * devices the model's own ops are named, not the collective ones between them: DTensor makes those
 * by itself. Linear in actions and ops. */
#include <string.h>

#include "schedule/export/export_kinds.h"

static smp_status write_schedule(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    static const char letter[] = {'F', 'B', 'I', 'W'}; /* in the order of smp_action_kind */
    (void)graph;
    if (!plan->training)
        return smp_fail(SMP_ERR_INPUT,
                        "torch-csv: the plan is for inference, and the reader of this format "
                        "expects a backward of every micro-batch: make a plan with mode: training");
    for (int rank = 0; rank < plan->pipeline; rank++) {
        const smp_program *program = &plan->program[rank];
        const char *comma = "";
        for (int64_t i = 0; i < program->n; i++) {
            const smp_action *a = &program->action[i];
            if (!smp_action_is_compute(a->kind))
                continue;
            smp_text_append(out, "%s%d%c%d", comma, smp_plan_stage_of(plan, rank, a->chunk),
                            letter[a->kind], (int)a->microbatch);
            comma = ",";
        }
        smp_text_append(out, "\n");
    }
    return SMP_OK;
}

/* A CSV field (RFC 4180): in quotes if it holds what would end it. */
static void put_field(smp_text *out, const char *value)
{
    if (!strpbrk(value, ",\"\r\n")) {
        smp_text_append(out, "%s", value);
        return;
    }
    smp_text_append(out, "\"");
    for (; *value; value++)
        smp_text_append(out, *value == '"' ? "\"\"" : "%c", *value);
    smp_text_append(out, "\"");
}

static smp_status write_stages(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    for (int s = 0; s < plan->n_stage; s++) {
        int32_t n = 0;
        smp_text_append(out, "%d,%d", s, plan->stage[s].rank);
        for (int32_t i = 0; i < plan->stage[s].n_op; i++) {
            if (graph->whole && smp_graph_find_op(graph->whole, plan->stage[s].op[i]) < 0)
                continue;
            n++;
            smp_text_append(out, ",");
            put_field(out, plan->stage[s].op[i]);
        }
        smp_text_append(out, "\n");
        if (n == 0)
            return smp_fail(SMP_ERR_INPUT,
                            "torch-stages: stage %d has no module, only what the devices of a "
                            "group (tensor) exchange: plan with --cut-at layers",
                            s);
    }
    return SMP_OK;
}

const smp_exporter smp__export_torch_stages = {
    .name = "torch-stages",
    .summary = "op names of each stage, a CSV row per stage",
    .write = write_stages,
};

const smp_exporter smp__export_torch_csv = {
    .name = "torch-csv",
    .summary = "schedule for torch.distributed.pipelining; op names of the stages in FILE.stages",
    .write = write_schedule,
    .beside = &smp__export_torch_stages,
    .beside_suffix = ".stages",
    .by_hand = {[SMP_EXPORT_RECOMPUTE] =
                    "wrap those modules in torch.utils.checkpoint.checkpoint, and return clones of "
                    "what they make, which PyTorch detaches in place between stages of one rank",
                [SMP_EXPORT_OFFLOAD] = "run those modules under torch.autograd.graph.save_on_cpu",
                [SMP_EXPORT_DDP] = "wrap each stage's module in DistributedDataParallel, over the "
                                   "ranks that have the same stages",
                [SMP_EXPORT_TENSOR] =
                    "parallelize_module each stage as the plan's `split` says: ColwiseParallel for "
                    "columns, RowwiseParallel for rows",
                [SMP_EXPORT_GROUPS] = "give each stage a device mesh of its own, and send what is "
                                      "whole from one to the next",
                [SMP_EXPORT_SHARDS] = "wrap each stage's module in fully_shard (FSDP2)",
                [SMP_EXPORT_PLACEMENT] = "start rank r of replica d on the device that `placement` "
                                         "gives it",
                [SMP_EXPORT_TIES] =
                    "add up the gradients of the shared weights over their stages before the "
                    "optimizer's step, and make the schedule with scale_grads=False and a loss "
                    "divided by the micro-batches: PyTorch scales a weight once for each stage"},
};
