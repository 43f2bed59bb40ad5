/* deepspeed-parts: the boundaries of the stages in DeepSpeed's list of layers, as a JSON list of
 * stages + 1 numbers: stage s holds layers parts[s] .. parts[s + 1] - 1. It is what
 * PipelineModule.parts holds (deepspeed/runtime/pipe/module.py, _partition_layers). The list of
 * layers is: the embedding (all ops before the first layer) if there is one, the layers, the head
 * (all ops after the last) if there is one. A model whose ops name no layers is refused. The loss
 * may be given as loss_fn instead of standing in the last layer.
 *
 * On the other side there is no option for given boundaries, but a hook of three lines:
 *
 *     class PlannedModule(PipelineModule):
 *         def _partition_layers(self, method=None):
 *             self.parts = json.load(open("FILE"))
 *             stage = self._topo.get_coord(self.global_rank).pipe
 *             self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
 *
 *     PlannedModule(layers=layers, num_stages=P, loss_fn=loss_fn)
 *
 * with "train_micro_batch_size_per_gpu": B and "gradient_accumulation_steps": M. DeepSpeed runs
 * 1F1B with one stage per rank: plans with chunks are refused. Linear in ops. */
#include "schedule/export/export_kinds.h"
#include "schedule/export/layer_line.h"

static smp_status write(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    smp__layer_line line;
    if (plan->chunks > 1)
        return smp_fail(SMP_ERR_INPUT,
                        "deepspeed-parts: the plan has %d stages per rank, DeepSpeed runs one: "
                        "plan with --chunks 1",
                        plan->chunks);
    SMP_TRY(smp__layer_line_of(plan, graph, "deepspeed-parts", &line));
    int32_t unit = 0;
    smp_text_append(out, "[0");
    for (int s = 0; s < plan->n_stage; s++) {
        while (unit < line.n && line.stage[unit] <= s)
            unit++;
        smp_text_append(out, ", %d", (int)unit);
    }
    smp_text_append(out, "]\n");
    smp_arena_destroy(line.arena);
    return SMP_OK;
}

const smp_exporter smp__export_deepspeed = {
    .name = "deepspeed-parts",
    .summary = "layer boundaries for DeepSpeed's PipelineModule; stages cut between layers",
    .write = write,
    .by_hand = {[SMP_EXPORT_RECOMPUTE] = "activation_checkpoint_interval=1 of PipelineModule",
                [SMP_EXPORT_OFFLOAD] =
                    "\"cpu_checkpointing\": true under \"activation_checkpointing\" of the config",
                [SMP_EXPORT_DDP] = "start so many times the pipeline's processes",
                [SMP_EXPORT_TENSOR] =
                    "topology=PipeModelDataParallelTopology(num_pp, num_mp, num_dp), and layers "
                    "that are split as the plan's `split` says, such as Megatron-LM's",
                [SMP_EXPORT_GROUPS] = "its topology has one degree: plan with --tensor T",
                [SMP_EXPORT_SHARDS] = "\"zero_optimization\": {\"stage\": 1}",
                [SMP_EXPORT_PLACEMENT] = "start processes in the order of the plan's `placement`",
                [SMP_EXPORT_TIES] = "give these layers as TiedLayerSpec"},
};
