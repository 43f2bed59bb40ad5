/* What the planner is asked, from the options of smp.h. */
#include "exec/start/planning.h"

#include <string.h>

#include "schedule/plan/freeze.h"

smp_status smp__placement_read(const char *name, const char *text, smp_placement *out,
                               bool *neighbours)
{
    static const char *const words[] = {"cluster", "spread", "auto"};
    const char *d = strchr(text, 'D'), *p = strchr(text, 'P'), *t = strchr(text, 'T');
    const bool letters = strlen(text) == 3 && d && p && t;
    *neighbours = !letters || t[1] == '\0';
    if (letters) {
        *out = p > d ? SMP_PLACEMENT_CLUSTER : SMP_PLACEMENT_SPREAD;
        return SMP_OK;
    }
    for (int i = 0; i <= SMP_PLACEMENT_AUTO; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = (smp_placement)i;
            return SMP_OK;
        }
    return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected cluster, spread or auto", name, text);
}

/* Numbers that a program may get wrong; smp-partition has checked them. */
static smp_status check_numbers(const smp_plan_options *o)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } number[] = {
        {"devices", o->devices, 0, SMP_MAX_COUNT},
        {"stages", o->stages, 0, SMP_MAX_COUNT},
        {"ddp", o->ddp, 0, SMP_MAX_COUNT},
        {"tensor", o->tensor, SMP_DEFAULT, SMP_MAX_COUNT},
        {"tensor_overlap", o->tensor_overlap, SMP_DEFAULT, SMP_TENSOR_OVERLAP_YES},
        {"chunks", o->chunks, 0, SMP_MAX_COUNT},
        {"microbatches", o->microbatches, 0, SMP_MAX_COUNT},
        {"microbatch_size", o->microbatch_size, 0, SMP_MAX_COUNT},
        {"global_batch", o->global_batch, 0, SMP_MAX_BATCH},
        {"gradient_blocks", o->gradient_blocks, 0, SMP_MAX_COUNT},
        {"active_microbatches", o->active_microbatches, 0, SMP_MAX_COUNT},
        {"weight_lag", o->weight_lag, 0, SMP_MAX_COUNT},
        {"group", o->group, 0, SMP_MAX_COUNT},
        {"shard", o->shard, SMP_SHARD_AUTO, SMP_MAX_COUNT},
        {"shard_what", o->shard_what, SMP_DEFAULT, SMP_SHARD_WEIGHTS},
        {"prefetch", o->prefetch, SMP_DEFAULT, SMP_MAX_COUNT},
        {"node_replicas", o->node_replicas, SMP_DEFAULT, SMP_MAX_COUNT},
        {"bucket_bytes", o->bucket_bytes, SMP_DEFAULT, INT64_MAX},
        {"gradient_wire", o->gradient_wire, SMP_DEFAULT, SMP_WIRE_BF16},
        {"memory_bytes", o->memory_bytes, 0, INT64_MAX},
        {"recompute", (int)o->recompute, 0, SMP_RECOMPUTE_ALL},
        {"offload", (int)o->offload, 0, SMP_OFFLOAD_ALL},
        {"offload_states", (int)o->offload_states, 0, SMP_OFFLOAD_ALL},
        {"loading_horizon", o->loading_horizon, 0, SMP_MAX_COUNT},
        {"objective", (int)o->objective, 0, SMP_OBJECTIVE_BOTTLENECK},
        {"optimize", (int)o->optimize, 0, SMP_OPTIMIZE_MEMORY},
        {"effort", (int)o->effort, 0, SMP_EFFORT_FULL},
    };
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        if (number[i].value < number[i].least || number[i].value > number[i].most)
            return smp_fail(SMP_ERR_INPUT, "planning.%s: got %lld, expected %lld to %lld",
                            number[i].name, (long long)number[i].value, (long long)number[i].least,
                            (long long)number[i].most);
    const struct {
        const char *name;
        const char *const *item;
        int n, most;
    } list[] = {{"set", o->set, o->n_set, SMP_MAX_SETTINGS},
                {"split", o->split, o->n_split, SMP_MAX_COUNT},
                {"cut_at", o->cut_at, o->n_cut_at, SMP_MAX_COUNT},
                {"freeze", o->freeze, o->n_freeze, SMP_MAX_FREEZES}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (list[i].n < 0 || (list[i].n > 0 && !list[i].item))
            return smp_fail(SMP_ERR_INPUT, "planning.n_%s: got %d without as many in %s",
                            list[i].name, list[i].n, list[i].name);
        if (list[i].n > list[i].most)
            return smp_fail(SMP_ERR_INPUT, "planning.n_%s: got %d, expected at most %d",
                            list[i].name, list[i].n, list[i].most);
    }
    return SMP_OK;
}

/* Which schedule, partitioner and placement, by name. */
static smp_status read_names(smp_search_request *r)
{
    smp_plan_options *o = &r->options;
    bool neighbours;
    if (o->schedule) {
        const smp_schedule_kind *kind = smp_schedule_find(o->schedule);
        if (!kind)
            return smp_schedule_fail_name("--pipeline", o->schedule);
        o->schedule = kind == &smp__schedule_auto ? NULL : kind->name;
    }
    if (o->partitioner && strcmp(o->partitioner, "auto") == 0)
        o->partitioner = NULL;
    if (o->partitioner)
        SMP_TRY(smp_partitioner_check("--partitioner", o->partitioner));
    r->placement = SMP_PLACEMENT_AUTO;
    return o->placement
               ? smp__placement_read("--placement", o->placement, &r->placement, &neighbours)
               : SMP_OK;
}

smp_status smp__plan_request_fill(const smp_plan_options *o, int ranks, smp_search_request *r)
{
    const bool any_what = o->shard_what == SMP_DEFAULT;
    SMP_TRY(check_numbers(o));
    *r = (smp_search_request){
        .options = *o,
        .sharding = {.shard = o->shard,
                     .what = any_what ? SMP_SHARD_OPTIMIZER : (smp_shard_what)o->shard_what,
                     .bucket_bytes = o->bucket_bytes,
                     .node_replicas = o->node_replicas,
                     .prefetch = o->prefetch,
                     .gradient_wire = o->gradient_wire},
        .any_shard_what = any_what,
        .advise = true};
    if (o->devices == 0)
        r->options.devices = ranks;
    return read_names(r);
}
