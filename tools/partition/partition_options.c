/* Options of smp-partition, read; see the header. */
#include "tools/partition/partition_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/text.h"
#include "graph/base/usage.h"
#include "graph/yaml/yaml.h"
#include "tools/partition/partition_flags.h"
#include "tools/partition/partition_values.h"
#include "schedule/plan/split_patterns.h"

/* Words stand in the table in the order of their enumerations. */
static smp_status set_choice(smp_partition_options *o, const smp__option_entry *entry,
                             const char *name, const char *text)
{
    smp_search_request *r = &o->request;
    int choice;
    SMP_TRY(smp__parse_choice(name, entry->value, text, &choice));
    switch (entry->flag) {
    case FLAG_OPTIMIZE:
        r->optimize = (smp_optimize)choice;
        return SMP_OK;
    case FLAG_OBJECTIVE:
        r->objective = (smp_objective)choice;
        return SMP_OK;
    case FLAG_DEVICE:
        o->target.backend = (smp_backend)choice;
        o->has_device = true;
        return SMP_OK;
    case FLAG_SHARD_WHAT:
        r->sharding.what = (smp_shard_what)choice;
        r->any_shard_what = false;
        return SMP_OK;
    case FLAG_PRECISION:
        o->target.precision = (smp_precision)choice;
        o->has_precision = true;
        return SMP_OK;
    case FLAG_OFFLOAD:
        r->offload = (smp_offload)choice;
        return SMP_OK;
    case FLAG_OFFLOAD_STATES:
        r->offload_states = (smp_offload)choice;
        return SMP_OK;
    case FLAG_STATE_PRECISION:
        o->target.bf16_states = choice == 1;
        o->has_state_precision = true;
        return SMP_OK;
    case FLAG_GRADIENT_WIRE:
        r->sharding.gradient_wire = choice;
        return SMP_OK;
    default:
        r->recompute = (smp_recompute)choice;
        return SMP_OK;
    }
}

static smp_status set_search_option(smp_partition_options *o, const smp__option_entry *entry,
                                    const char *name, const char *text)
{
    smp_search_request *r = &o->request;
    int count = 0;
    switch (entry->flag) {
    case FLAG_DEVICES:
        return smp__parse_count(name, text, false, &r->devices);
    case FLAG_STAGES:
        return smp__parse_count(name, text, true, &r->stages);
    case FLAG_DDP:
        return smp__parse_count(name, text, true, &r->ddp);
    case FLAG_TENSOR:
        o->has_tensor = true;
        return smp__parse_count(name, text, true, &o->tensor);
    case FLAG_TENSOR_OVERLAP:
        o->has_tensor_overlap = true;
        return smp__parse_choice(name, entry->value, text, &o->tensor_overlap);
    case FLAG_SHARD:
        SMP_TRY(smp__parse_count(name, text, true, &r->sharding.shard));
        if (r->sharding.shard == 0)
            r->sharding.shard = SMP_SHARD_AUTO;
        return SMP_OK;
    case FLAG_PREFETCH:
        return smp__parse_prefetch(name, text, &r->sharding.prefetch);
    case FLAG_NODE_REPLICAS:
        return smp__parse_hops(name, text, &r->sharding.node_replicas);
    case FLAG_BUCKET_BYTES:
        return smp__parse_bucket(name, text, &r->sharding.bucket_bytes);
    case FLAG_CHUNKS:
        return smp__parse_count(name, text, true, &r->chunks);
    case FLAG_MICROBATCHES:
        return smp__parse_count(name, text, true, &r->microbatches);
    case FLAG_MICROBATCH_SIZE:
        SMP_TRY(smp__parse_count(name, text, false, &count));
        r->microbatch_size = count;
        return SMP_OK;
    case FLAG_GRADIENT_BLOCKS:
        return smp__parse_count(name, text, false, &r->gradient_blocks);
    case FLAG_PIPELINE:
    case FLAG_SCHEDULE:
        return smp__parse_schedule(name, text, &r->schedule);
    case FLAG_ACTIVE:
        return smp__parse_count(name, text, false, &r->active_microbatches);
    case FLAG_WEIGHT_LAG:
        return smp__parse_count(name, text, true, &r->weight_lag);
    case FLAG_GROUP:
        return smp__parse_count(name, text, false, &r->group);
    case FLAG_LOADING_HORIZON:
        return smp__parse_count(name, text, true, &r->loading_horizon);
    case FLAG_MEMORY:
        return smp__parse_memory(name, text, &r->memory_bytes);
    case FLAG_PARTITIONER:
        return smp__parse_partitioner(name, text, &r->partitioner);
    case FLAG_TIME_LIMIT:
        r->until_deadline = true;
        return smp__parse_time_limit(name, text, &o->time_limit_s);
    case FLAG_SEED:
        return smp__parse_seed(name, text, &r->seed);
    default:
        return set_choice(o, entry, name, text);
    }
}

/* "PLAN:0,3-5", unless that is a file. */
static smp_status set_fix(smp_partition_options *o, const char *text)
{
    const char *colon = strrchr(text, ':');
    free(o->fix_text);
    o->fix_text = NULL;
    o->fix = text;
    o->fix_stages = NULL;
    if (!colon || colon == text || access(text, R_OK) == 0 ||
        strspn(colon + 1, "0123456789,-") != strlen(colon + 1))
        return SMP_OK;
    o->fix_text = strdup(text);
    if (!o->fix_text)
        return smp_fail_memory(strlen(text));
    o->fix_text[colon - text] = '\0';
    o->fix = o->fix_text;
    o->fix_stages = o->fix_text + (colon - text) + 1;
    return SMP_OK;
}

static smp_status add_cuts(smp_partition_options *o, const char *name, const char *text)
{
    if (o->n_cut_text == SMP_MAX_CUTS)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d times", name, SMP_MAX_CUTS);
    char *copy = o->cut_text[o->n_cut_text++] = strdup(text), *rest = NULL;
    if (!copy)
        return smp_fail_memory(strlen(text));
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (o->n_cut == SMP_MAX_CUTS)
            return smp_fail(SMP_ERR_INPUT, "%s: more than %d patterns", name, SMP_MAX_CUTS);
        o->cut[o->n_cut++] = word;
    }
    if (o->n_cut == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a pattern of op names", name, text);
    return SMP_OK;
}

static smp_status add_split(smp_partition_options *o, const char *name, const char *text)
{
    if (o->n_split == SMP_MAX_SPLITS)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d times", name, SMP_MAX_SPLITS);
    SMP_TRY(smp_split_entry_parse(name, text, &o->split[o->n_split]));
    o->n_split++;
    return SMP_OK;
}

static smp_status add_freeze(smp_partition_options *o, const char *name, const char *text)
{
    if (o->freezing.n == SMP_MAX_FREEZES)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d times", name, SMP_MAX_FREEZES);
    o->freeze[o->freezing.n++] = (smp_freeze_entry){text, {name, 0, 0}};
    o->freezing.entry = o->freeze;
    return SMP_OK;
}

static smp_status add_export(smp_partition_options *o, const char *name, const char *text)
{
    if (o->n_export == SMP_MAX_EXPORTS)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d", name, SMP_MAX_EXPORTS);
    SMP_TRY(smp_export_parse(name, text, &o->exporter[o->n_export], &o->export_path[o->n_export]));
    o->n_export++;
    return SMP_OK;
}

static smp_status add_plugin(smp_partition_options *o, const char *name, const char *text)
{
    if (o->n_plugin == SMP_MAX_PLUGINS)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d", name, SMP_MAX_PLUGINS);
    o->plugin[o->n_plugin++] = text;
    return SMP_OK;
}

static const char **file_of(smp_partition_options *o, int option)
{
    switch (option) {
    case FLAG_OUTPUT:
        return &o->output;
    case FLAG_CLUSTER:
        return &o->cluster;
    case FLAG_PROFILE:
        return &o->profile;
    case FLAG_MODEL:
        return &o->model;
    case FLAG_SCHEDULE_FROM:
        return &o->schedule_from;
    case FLAG_COSTS:
        return &o->costs;
    case FLAG_SPLIT_FROM:
        return &o->split_from;
    case FLAG_SAME_BITS_AS:
        return &o->same_bits_as;
    case FLAG_TRACE:
        return &o->trace;
    case FLAG_REPORT:
        return &o->report;
    case FLAG_SVG:
        return &o->svg;
    default:
        return NULL;
    }
}

static smp_status set_placement(smp_partition_options *o, const char *name,
                                const smp__option_entry *entry, const char *text)
{
    int choice;
    bool far;
    SMP_TRY(smp__parse_placement(name, entry->value, text, &choice, &far));
    o->request.placement = (smp_placement)choice;
    o->has_placement = o->request.placement != SMP_PLACEMENT_AUTO;
    o->far_tensor = far ? text : NULL;
    return SMP_OK;
}

static smp_status set_option(smp_partition_options *o, const smp__option_entry *entry,
                             const char *text)
{
    char name[64];
    const char **file = file_of(o, entry->flag);
    snprintf(name, sizeof name, "%s%s", entry->name[1] ? "--" : "-", entry->name);
    if (!(entry->commands & (o->check ? IN_CHECK : IN_PLAN)))
        return smp_fail(SMP_ERR_INPUT, "%s: not an option of smp-partition %s", name,
                        o->check ? "check PLAN" : "MODEL");
    if (file) {
        *file = text;
        return *text ? SMP_OK
                     : smp_fail(SMP_ERR_INPUT, "%s: got an empty name, expected a file", name);
    }
    switch (entry->flag) {
    case FLAG_FIX:
        return set_fix(o, text);
    case FLAG_PLACEMENT:
        return set_placement(o, name, entry, text);
    case FLAG_CUT_AT:
        return add_cuts(o, name, text);
    case FLAG_SPLIT:
        return add_split(o, "--split", text);
    case FLAG_FREEZE:
        return add_freeze(o, "--freeze", text);
    case FLAG_EXPORT:
        return add_export(o, name, text);
    case FLAG_PLUGIN:
        return add_plugin(o, name, text);
    case FLAG_EXPLAIN:
        o->explain = true;
        return SMP_OK;
    case FLAG_JSON:
        o->json = true;
        return SMP_OK;
    case FLAG_HELP:
        o->help = true;
        return SMP_OK;
    case FLAG_VERSION:
        o->version = true;
        return SMP_OK;
    default:
        return set_search_option(o, entry, name, text);
    }
}

static const smp__option_entry *find_entry(int option)
{
    const smp__option_entry *entry = smp__partition_entries;
    while (entry->flag && entry->flag != option)
        entry++;
    return entry->flag ? entry : NULL;
}

static void make_long_options(struct option *out)
{
    int n = 0;
    for (const smp__option_entry *e = smp__partition_entries; e->flag; e++)
        if (e->flag > FLAG_HEADING)
            out[n++] = (struct option){e->name,
                                       e->flag == FLAG_OFFLOAD_STATES ? optional_argument
                                       : e->value                     ? required_argument
                                                                      : no_argument,
                                       NULL, e->flag};
    out[n] = (struct option){NULL, 0, NULL, 0};
}

/* Of an option whose value may be missing. */
static const char *value_or_all(int argc, char **argv)
{
    const char *next = optind < argc ? argv[optind] : "";
    if (strcmp(next, "none") != 0 && strcmp(next, "auto") != 0 && strcmp(next, "all") != 0)
        return "all";
    optind++;
    return next;
}

static smp_status spare_file(const smp_partition_options *o, const char *read)
{
    const char *const written[] = {o->output, o->trace, o->report, o->svg};
    for (size_t k = 0; k < sizeof written / sizeof written[0]; k++)
        SMP_TRY(smp_file_spares(written[k], read));
    for (int k = 0; k < o->n_export; k++)
        SMP_TRY(smp_file_spares(o->export_path[k], read));
    return SMP_OK;
}

/* No file that is read is written, too. */
static smp_status check_files(const smp_partition_options *o)
{
    const char *const read[] = {o->model,   o->plan,         o->fix,
                                o->cluster, o->profile,      o->schedule_from,
                                o->costs,   o->same_bits_as, o->split_from};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        SMP_TRY(spare_file(o, read[i]));
    for (int i = 0; i < o->n_plugin; i++)
        SMP_TRY(spare_file(o, o->plugin[i]));
    return SMP_OK;
}

smp_status smp_partition_options_parse(int argc, char **argv, smp_partition_options *o)
{
    struct option long_options[FLAG_VERSION - FLAG_HEADING + 1];
    make_long_options(long_options);
    *o = (smp_partition_options){.time_limit_s = 10,
                                 .tensor = 1,
                                 .request = {.seed = 1,
                                             .recompute = SMP_RECOMPUTE_AUTO,
                                             .offload = SMP_OFFLOAD_AUTO,
                                             .offload_states = SMP_OFFLOAD_AUTO,
                                             .placement = SMP_PLACEMENT_AUTO,
                                             .advise = true,
                                             .sharding = {.bucket_bytes = SMP_BUCKET_AUTO,
                                                          .node_replicas = SMP_HOPS_AUTO,
                                                          .prefetch = SMP_PREFETCH_AUTO,
                                                          .gradient_wire = SMP_WIRE_AUTO},
                                             .any_shard_what = true}};
    o->check = argc > 1 && strcmp(argv[1], "check") == 0;
    opterr = 0;
    optind = o->check ? 2 : 1;
    for (int option; (option = getopt_long(argc, argv, ":o:n:", long_options, NULL)) != -1;) {
        const smp__option_entry *entry = find_entry(option);
        if (!entry)
            return smp_usage_bad_option(argv[optind - 1], option == ':', long_options);
        SMP_TRY(set_option(o, entry, optarg || !entry->value ? optarg : value_or_all(argc, argv)));
    }
    if (o->help || o->version)
        return SMP_OK;
    if (argc - optind != 1)
        return smp_fail(SMP_ERR_INPUT, "got %d %ss, expected one: smp-partition %s", argc - optind,
                        o->check ? "plan" : "model", o->check ? "check PLAN" : "MODEL");
    if (o->check)
        o->plan = argv[optind];
    else
        o->model = argv[optind];
    return check_files(o);
}

smp_status smp_partition_options_target(const smp_partition_options *options,
                                        const smp_sketch *sketch, const smp_profile *profile,
                                        smp_target *out)
{
    smp_target target = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    bool whole = sketch && options->check && sketch->n_program > 0; /* says cpu by saying nothing */
    if (whole || (sketch && sketch->has_target))
        target = sketch->target;
    else if (profile)
        target = smp_profile_target(profile);
    if (options->has_device)
        target.backend = options->target.backend;
    if (options->has_precision)
        target.precision = options->target.precision;
    if (options->has_state_precision)
        target.bf16_states = options->target.bf16_states;
    if (smp_target_check(target) != SMP_OK)
        return smp_fail(SMP_ERR_INPUT,
                        "--device %s: it has no %s, which %s: give --device cuda or --precision "
                        "fp32",
                        smp_backend_name(target.backend), smp_precision_name(target.precision),
                        options->has_precision ? "--precision asks for"
                                               : "the plan or the profile is in");
    *out = target;
    return SMP_OK;
}

void smp_partition_options_free(smp_partition_options *options)
{
    free(options->fix_text);
    for (int i = 0; i < options->n_cut_text; i++)
        free(options->cut_text[i]);
    for (int i = 0; i < options->n_split; i++)
        free((char *)options->split[i].op);
}
