/* The table of exporters (export_kinds.h), and `FORMAT:FILE`. */
#include "schedule/export/export.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/export/export_kinds.h"

#define ENTRY(name) &smp__export_##name,
static const smp_exporter *const exporters[] = {SMP__EXPORTERS(ENTRY) NULL};
#undef ENTRY

enum { N_EXPORTER = sizeof exporters / sizeof exporters[0] - 1 };

const smp_exporter *const *smp_exporters(void)
{
    return exporters;
}

const smp_exporter *smp_exporter_find(const char *name)
{
    for (int i = 0; name && i < N_EXPORTER; i++)
        if (strcmp(exporters[i]->name, name) == 0)
            return exporters[i];
    return NULL;
}

static smp_status fail_unknown(const char *option, const char *name)
{
    const char *names[N_EXPORTER];
    smp_text list = {0};
    for (int i = 0; i < N_EXPORTER; i++) {
        names[i] = exporters[i]->name;
        smp_text_append(&list, "%s%s", i ? ", " : "", names[i]);
    }
    const char *nearest = smp_nearest(name, names, N_EXPORTER);
    smp_status status =
        smp_fail(SMP_ERR_INPUT, "%s: got format '%s', expected one of %s%s%s%s", option, name,
                 list.data ? list.data : "", nearest ? "; did you mean '" : "",
                 nearest ? nearest : "", nearest ? "'?" : "");
    smp_text_free(&list);
    return status;
}

smp_status smp_export_parse(const char *option, const char *spec, const smp_exporter **exporter,
                            const char **path)
{
    char name[64];
    const char *colon = strchr(spec, ':');
    size_t length = colon ? (size_t)(colon - spec) : strlen(spec);
    if (length >= sizeof name)
        length = sizeof name - 1;
    memcpy(name, spec, length);
    name[length] = '\0';
    const smp_exporter *found = smp_exporter_find(name);
    if (!found)
        return fail_unknown(option, name);
    if (!colon || !colon[1])
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected FORMAT:FILE, such as %s:plan.%s",
                        option, spec, found->name, found->name);
    *exporter = found;
    *path = colon + 1;
    return SMP_OK;
}

static smp_status write_one(const smp_exporter *exporter, const smp_plan *plan,
                            const smp_graph *graph, const char *path, const char *suffix)
{
    smp_text text = {0}, name = {0};
    smp_text_append(&name, "%s%s", path, suffix);
    smp_status status = name.failed ? smp_fail_memory(strlen(path)) : SMP_OK;
    if (status == SMP_OK)
        status = exporter->write(plan, graph, &text);
    if (status == SMP_OK && text.failed)
        status = smp_fail_memory(text.capacity);
    if (status == SMP_OK)
        status = smp_file_write(name.data, text.data, text.length);
    smp_text_free(&text);
    smp_text_free(&name);
    return status;
}

/* Those who run a plan elsewhere give every replica as many micro-batches as the others. */
static smp_status check_replicas(const smp_exporter *exporter, const smp_plan *plan)
{
    const int blocks = smp_plan_blocks(plan);
    if (blocks % plan->ddp == 0 || !exporter->by_hand[SMP_EXPORT_DDP])
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: %d replicas have %d gradient blocks between them, expected as many micro-"
                    "batches on each: a --ddp that divides --gradient-blocks",
                    exporter->name, plan->ddp, blocks);
}

smp_status smp_export_file(const smp_exporter *exporter, const smp_plan *plan,
                           const smp_graph *graph, const char *path)
{
    SMP_TRY(check_replicas(exporter, plan));
    SMP_TRY(write_one(exporter, plan, graph, path, ""));
    if (!exporter->beside)
        return SMP_OK;
    return write_one(exporter->beside, plan, graph, path, exporter->beside_suffix);
}

static int count_recomputing(const smp_plan *plan)
{
    int n = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n += smp_plan_stage_recomputes(&plan->stage[s]) > 0;
    return n;
}

static int count_offloading(const smp_plan *plan)
{
    int n = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n += plan->stage[s].offload_bytes > 0;
    return n;
}

/* Do ops of two stages use the weight? */
static bool is_tied(const smp_graph *graph, const smp_param *param, const int32_t *stage_of_op)
{
    for (int32_t u = param->use_begin + 1; u < param->use_end; u++)
        if (stage_of_op[graph->use[u].op] != stage_of_op[graph->use[param->use_begin].op])
            return true;
    return false;
}

static smp_status count_ties(const smp_plan *plan, const smp_graph *graph, int *n)
{
    int32_t *stage_of_op = NULL;
    SMP_TRY(smp_plan_bind(plan, graph, &stage_of_op));
    for (int32_t p = 0; p < graph->n_param; p++)
        *n += is_tied(graph, &graph->param[p], stage_of_op);
    free(stage_of_op);
    return SMP_OK;
}

smp_status smp_export_notes(const smp_exporter *exporter, const smp_plan *plan,
                            const smp_graph *graph, smp_text *text)
{
    static const char *const what[SMP_N_EXPORT_ASPECT] = {
        [SMP_EXPORT_RECOMPUTE] = "%d of the stages recompute",
        [SMP_EXPORT_OFFLOAD] = "%d of the stages send stashes to host memory",
        [SMP_EXPORT_DDP] = "there are %d replicas (ddp)",
        [SMP_EXPORT_TENSOR] = "groups of %d devices compute every op together (tensor)",
        [SMP_EXPORT_GROUPS] = "stages have groups of different sizes, of up to %d devices",
        [SMP_EXPORT_SHARDS] = "states lie in shards of %d replicas",
        [SMP_EXPORT_PLACEMENT] = "%d devices serve ranks in an order of the plan's own",
        [SMP_EXPORT_TIES] = "weights are shared between stages (%d)"};
    int number[SMP_N_EXPORT_ASPECT] = {
        [SMP_EXPORT_RECOMPUTE] = count_recomputing(plan),
        [SMP_EXPORT_OFFLOAD] = count_offloading(plan),
        [SMP_EXPORT_DDP] = plan->ddp > 1 ? plan->ddp : 0,
        [SMP_EXPORT_TENSOR] = smp_plan_tensor(plan) > 1 ? smp_plan_tensor(plan) : 0,
        [SMP_EXPORT_GROUPS] = plan->rank_begin ? smp_plan_tensor(plan) : 0,
        [SMP_EXPORT_SHARDS] = plan->sharding.shard > 1 ? plan->sharding.shard : 0,
        [SMP_EXPORT_PLACEMENT] =
            plan->placement != SMP_PLACEMENT_CLUSTER ? smp_plan_processes(plan) : 0};
    if (plan->training)
        SMP_TRY(count_ties(plan, graph, &number[SMP_EXPORT_TIES]));
    for (int i = 0; i < SMP_N_EXPORT_ASPECT; i++) {
        if (number[i] == 0 || !exporter->by_hand[i])
            continue;
        smp_text_append(text, "%s does not say that ", exporter->name);
        smp_text_append(text, what[i], number[i]);
        smp_text_append(text, ": %s\n", exporter->by_hand[i]);
    }
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
