/* megatron-layout: the stages as Megatron-LM's --pipeline-model-parallel-layout reads them
 * (megatron/core/transformer/pipeline_parallel_layer_layout.py): stages in forward order, divided
 * by '|', E the embedding, t a transformer layer, L the loss (here: all after the last layer, final
 * norm and output projection included), x*n for n times x. Stages beyond the number of ranks are
 * virtual stages of the ranks in turn.
 *
 * On the other side, with the numbers of the plan:
 *
 *     --pipeline-model-parallel-size P --pipeline-model-parallel-layout "$(cat FILE)"
 *     --num-layers N --micro-batch-size B --global-batch-size B*M*D
 *
 * Layers are known by the names of their ops (layer_line.h). Refused: stages that do not begin and
 * end at layers, a model without layers or without an embedding or a head, with layers of two
 * kinds, and stages that are not dealt out to the ranks in turn (V-shaped schedules). Linear in
 * ops. */
#include "schedule/export/export_kinds.h"
#include "schedule/export/layer_line.h"

static smp_status check(const smp_plan *plan, const smp__layer_line *line)
{
    if (!line->embedding || !line->head)
        return smp_fail(SMP_ERR_INPUT,
                        "megatron-layout: model '%s' has nothing %s layer: expected ops before, in "
                        "and after layers",
                        plan->model_name, line->embedding ? "after its last" : "before its first");
    if (line->other_layer)
        return smp_fail(SMP_ERR_INPUT,
                        "megatron-layout: model '%s' has layers of two kinds, '%s' and '%s': this "
                        "format is of one stack of equal layers, an encoder and a decoder are two "
                        "models there",
                        plan->model_name, line->name[line->embedding], line->other_layer);
    for (int s = 0; s < plan->n_stage; s++)
        if (plan->stage[s].rank != s % plan->pipeline)
            return smp_fail(SMP_ERR_INPUT,
                            "megatron-layout: stage %d lies on rank %d, expected rank %d: this "
                            "format deals stages out to ranks in turn; plan with --pipeline "
                            "interleaved",
                            s, plan->stage[s].rank, s % plan->pipeline);
    return SMP_OK;
}

static void put_stage(const smp__layer_line *line, int stage, int32_t *unit, smp_text *out)
{
    int layers = 0;
    bool loss = false;
    for (; *unit < line->n && line->stage[*unit] == stage; (*unit)++) {
        if (*unit == 0)
            smp_text_append(out, "E");
        else if (*unit == line->n - 1)
            loss = true;
        else
            layers++;
    }
    if (layers > 0)
        smp_text_append(out, layers > 1 ? "t*%d" : "t", layers);
    smp_text_append(out, loss ? "L" : "");
}

static smp_status write(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    smp__layer_line line;
    SMP_TRY(smp__layer_line_of(plan, graph, "megatron-layout", &line));
    smp_status status = check(plan, &line);
    int32_t unit = 0;
    for (int s = 0; status == SMP_OK && s < plan->n_stage; s++) {
        smp_text_append(out, s > 0 ? "|" : "");
        put_stage(&line, s, &unit, out);
    }
    if (status == SMP_OK)
        smp_text_append(out, "\n");
    smp_arena_destroy(line.arena);
    return status;
}

const smp_exporter smp__export_megatron = {
    .name = "megatron-layout",
    .summary = "--pipeline-model-parallel-layout of Megatron-LM; stages cut between layers",
    .write = write,
    .by_hand = {[SMP_EXPORT_RECOMPUTE] = "--recompute-granularity full --recompute-method uniform",
                [SMP_EXPORT_OFFLOAD] = "cpu_offloading of TransformerConfig",
                [SMP_EXPORT_DDP] =
                    "start so many times the pipeline's processes; --global-batch-size "
                    "is that of all replicas",
                [SMP_EXPORT_TENSOR] =
                    "--tensor-model-parallel-size; layers are then split as there, "
                    "whatever the plan's `split` says",
                [SMP_EXPORT_GROUPS] = "it has one degree for all stages: plan with --tensor T",
                [SMP_EXPORT_SHARDS] = "--use-distributed-optimizer, or FSDP",
                [SMP_EXPORT_PLACEMENT] = "start processes in the order of the plan's `placement`",
                [SMP_EXPORT_TIES] = "leave out --untie-embeddings-and-output-weights"},
};
