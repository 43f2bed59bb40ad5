/* torchtitan: which modules each stage has, as torchtitan reads it (torchtitan 0.3,
 * torchtitan/config/configs.py: ParallelismConfig.module_fqns_per_model_part), a JSON list of lists
 * that is also Python's:
 *
 *     [["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]]
 *
 * with the order of actions beside it, FILE.csv (torch-csv). There, with the numbers of the plan:
 *
 *     config.parallelism.pipeline_parallel_degree = P
 *     config.parallelism.module_fqns_per_model_part = json.load(open("FILE"))
 *     config.parallelism.pipeline_parallel_schedule_csv = "FILE.csv"
 *     config.parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti"
 *     config.parallelism.pipeline_parallel_microbatch_size = B
 *     config.training.local_batch_size = B*M
 *
 * (`ZBVZeroBubble` as the schedule's name where stages are folded into a V: the name tells it only
 * where they lie.) Modules are named as in torchtitan's own language models: tok_embeddings, layers
 * counted from 0, norm and lm_head. Refused: stages that do not begin and end at layers, models
 * without an embedding or a head or with layers of two kinds, and stages dealt out otherwise.
 * Linear in ops. */
#include "schedule/export/export_kinds.h"
#include "schedule/export/layer_line.h"

static bool in_turn(const smp_plan *plan, int s)
{
    return plan->stage[s].rank == s % plan->pipeline;
}

static bool in_v(const smp_plan *plan, int s)
{
    const int p = plan->pipeline;
    return plan->chunks == 2 && plan->stage[s].rank == (s < p ? s : 2 * p - 1 - s);
}

static smp_status check(const smp_plan *plan, const smp__layer_line *line)
{
    bool turn = true, v = true;
    if (!line->embedding || !line->head)
        return smp_fail(SMP_ERR_INPUT,
                        "torchtitan: model '%s' has nothing %s layer: expected ops before, in and "
                        "after layers",
                        plan->model_name, line->embedding ? "after its last" : "before its first");
    if (line->other_layer)
        return smp_fail(SMP_ERR_INPUT,
                        "torchtitan: model '%s' has layers of two kinds, '%s' and '%s': expected "
                        "one stack of layers",
                        plan->model_name, line->name[line->embedding], line->other_layer);
    for (int s = 0; s < plan->n_stage; s++) {
        turn &= in_turn(plan, s);
        v &= in_v(plan, s);
    }
    return turn || v ? SMP_OK
                     : smp_fail(SMP_ERR_INPUT,
                                "torchtitan: stages are neither dealt out to the ranks in turn nor "
                                "folded into a V: plan with --pipeline interleaved");
}

static smp_status write(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    smp__layer_line line;
    SMP_TRY(smp__layer_line_of(plan, graph, "torchtitan", &line));
    smp_status status = check(plan, &line);
    int32_t unit = 0;
    for (int s = 0; status == SMP_OK && s < plan->n_stage; s++) {
        const char *comma = "";
        smp_text_append(out, s > 0 ? ",\n [" : "[[");
        for (; unit < line.n && line.stage[unit] == s; unit++, comma = ", ") {
            if (unit == 0)
                smp_text_append(out, "%s\"tok_embeddings\"", comma);
            else if (unit == line.n - 1)
                smp_text_append(out, "%s\"norm\", \"lm_head\"", comma);
            else
                smp_text_append(out, "%s\"layers.%d\"", comma, (int)unit - 1);
        }
        smp_text_append(out, "]");
    }
    if (status == SMP_OK)
        smp_text_append(out, "]\n");
    smp_arena_destroy(line.arena);
    return status;
}

const smp_exporter smp__export_torchtitan = {
    .name = "torchtitan",
    .summary = "module names of each stage for torchtitan; the schedule in FILE.csv",
    .write = write,
    .beside = &smp__export_torch_csv,
    .beside_suffix = ".csv",
    .by_hand = {[SMP_EXPORT_RECOMPUTE] = "config.activation_checkpoint = FullAC.Config()",
                [SMP_EXPORT_OFFLOAD] = "run those modules under torch.autograd.graph.save_on_cpu",
                [SMP_EXPORT_DDP] = "config.parallelism.data_parallel_replicate_degree",
                [SMP_EXPORT_TENSOR] = "config.parallelism.tensor_parallel_degree; modules are then "
                                      "split as there, whatever the plan's `split` says",
                [SMP_EXPORT_GROUPS] = "it has one degree for all stages: plan with --tensor T",
                [SMP_EXPORT_SHARDS] = "config.parallelism.data_parallel_shard_degree",
                [SMP_EXPORT_PLACEMENT] = "start processes in the order of the plan's `placement`",
                [SMP_EXPORT_TIES] = "torchtitan ties no weights across stages: untie the model"},
};
