/* Options of smp-partition; see the header. Names of schedules, partitioners and export formats
 * come from their registries. */
#include "schedule/partition_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/usage.h"
#include "graph/yaml/yaml.h"
#include "schedule/partition_values.h"
#include "schedule/plan/split_patterns.h"

typedef enum flag {
    FLAG_OUTPUT = 'o',
    FLAG_DEVICES = 'n',
    FLAG_HEADING = 255, /* a line of --help */
    FLAG_CLUSTER,
    FLAG_PROFILE,
    FLAG_DEVICE,
    FLAG_PRECISION,
    FLAG_MODEL,
    FLAG_PLUGIN,
    FLAG_FIX,
    FLAG_CUT_AT,
    FLAG_SCHEDULE_FROM,
    FLAG_COSTS,
    FLAG_STAGES,
    FLAG_DDP,
    FLAG_TENSOR,
    FLAG_TENSOR_OVERLAP,
    FLAG_SPLIT,
    FLAG_FREEZE,
    FLAG_SHARD,
    FLAG_SHARD_WHAT,
    FLAG_PREFETCH,
    FLAG_NODE_REPLICAS,
    FLAG_BUCKET_BYTES,
    FLAG_CHUNKS,
    FLAG_MICROBATCHES,
    FLAG_MICROBATCH_SIZE,
    FLAG_GRADIENT_BLOCKS,
    FLAG_PIPELINE,
    FLAG_SCHEDULE,
    FLAG_ACTIVE,
    FLAG_GROUP,
    FLAG_OPTIMIZE,
    FLAG_OBJECTIVE,
    FLAG_PLACEMENT,
    FLAG_MEMORY,
    FLAG_RECOMPUTE,
    FLAG_PARTITIONER,
    FLAG_TIME_LIMIT,
    FLAG_SEED,
    FLAG_EXPLAIN,
    FLAG_JSON,
    FLAG_TRACE,
    FLAG_REPORT,
    FLAG_SVG,
    FLAG_EXPORT,
    FLAG_HELP,
    FLAG_VERSION
} flag;

enum { IN_PLAN = 1, IN_CHECK = 2, IN_BOTH = 3, HELP_COLUMN = 32, HELP_WIDTH = 98 };

typedef struct option_entry {
    int flag;
    const char *name;  /* without dashes; of one letter: a short option */
    const char *value; /* NULL: takes none; "a|b|c" of choices: in the order of their enumeration */
    unsigned commands;
    const char *help;
} option_entry;

static const option_entry entries[] = {
    {FLAG_OUTPUT, "o", "FILE", IN_BOTH, "where to write the plan (check: with all filled in)"},
    {FLAG_DEVICES, "n", "DEVICES", IN_PLAN,
     "devices to use (default: all of the cluster; without a cluster stages x ddp, or one per "
     "core)"},
    {FLAG_CLUSTER, "cluster", "FILE", IN_BOTH,
     "devices and links (default: the plan's own with check and --fix, else this machine)"},
    {FLAG_PROFILE, "profile", "FILE", IN_BOTH,
     "measured costs from smp-profile (default: estimated)"},
    {FLAG_DEVICE, "device", "cpu|cuda", IN_BOTH,
     "what the plan is run on (default: what the plan with check and --fix says, or the profile "
     "was measured on, else cpu)"},
    {FLAG_PRECISION, "precision", "fp32|tf32|bf16", IN_BOTH,
     "number format there, tf32 on cuda alone (default: as --device, else fp32)"},
    {FLAG_MODEL, "model", "FILE", IN_CHECK, "the model of the plan (default: the one it names)"},
    {FLAG_COSTS, "costs", "PLAN", IN_CHECK,
     "what the stages of a schedule of another framework take: those of this plan (default: "
     "forward 1, backward 2)"},
    {FLAG_PLUGIN, "plugin", "FILE.so", IN_BOTH,
     "operators of your own that the model uses (smp_op_register); repeatable"},
    {FLAG_HEADING, "what is searched", NULL, 0, NULL},
    {FLAG_STAGES, "stages", "P|auto", IN_BOTH, "pipeline ranks"},
    {FLAG_DDP, "ddp", "D|auto", IN_BOTH, "replicas"},
    {FLAG_TENSOR, "tensor", "T|auto", IN_PLAN,
     "devices that compute each op together (tensor parallelism), neighbours of one node; how each "
     "op is split is chosen (default: the plan's with --fix, else 1)"},
    {FLAG_TENSOR_OVERLAP, "tensor-overlap", "auto|no|yes", IN_PLAN,
     "weight gradients are put off and made while a group exchanges those of activations (default: "
     "the plan's with --fix, else auto: where that hides something and fits)"},
    {FLAG_SPLIT, "split", "PATTERN:RULE", IN_PLAN,
     "ops that match are split so, such as 'h*.mlp.fc:columns', or 'whole'; with --tensor, "
     "repeatable, a later one wins"},
    {FLAG_FREEZE, "freeze", "PATTERN", IN_PLAN,
     "weights that match, such as 'wte.*', are not trained; repeatable (default: the plan's with "
     "--fix, else none)"},
    {FLAG_SHARD, "shard", "S|auto", IN_BOTH,
     "replicas that hold one copy of the states together, each a part: divides ddp; auto: with and "
     "without are planned, and the faster is taken (default: the plan's, or 1)"},
    {FLAG_SHARD_WHAT, "shard-what", "optimizer|gradients|weights", IN_BOTH,
     "which states: those of the optimizer (default), gradients too, weights too (--shard auto: "
     "any)"},
    {FLAG_PREFETCH, "prefetch", "K|auto", IN_BOTH,
     "sharded weights are gathered K runs of a chunk ahead of use, 0: right before it (default "
     "auto: 1, 0 where only that fits, 2 where it is faster and fits)"},
    {FLAG_NODE_REPLICAS, "node-replicas", "N|none|auto", IN_BOTH,
     "replicas of one node that sums and gathers go through before nodes (default auto: by the "
     "links)"},
    {FLAG_BUCKET_BYTES, "bucket-bytes", "SIZE|none|auto", IN_BOTH,
     "gradients are reduced in buckets of this size while the last backward still makes others "
     "(default auto: by latency and bandwidth; none where cores move the data)"},
    {FLAG_CHUNKS, "chunks", "V|auto", IN_BOTH, "stages per pipeline rank"},
    {FLAG_MICROBATCHES, "microbatches", "M|auto", IN_BOTH,
     "micro-batches per replica and step (check: default the plan's, else 4 x ranks)"},
    {FLAG_MICROBATCH_SIZE, "microbatch-size", "B", IN_BOTH,
     "samples in a micro-batch (default: the plan's, the profile's, or 1)"},
    {FLAG_GRADIENT_BLOCKS, "gradient-blocks", "N", IN_BOTH,
     "gradients are added in N blocks of the batch: the same bits for every ddp that divides N "
     "(default: the plan's, or ddp)"},
    {FLAG_PIPELINE, "pipeline", "NAME|auto", IN_BOTH, "schedule: "},
    {FLAG_SCHEDULE, "schedule", "NAME|auto", IN_BOTH, "the same by its other name"},
    {FLAG_ACTIVE, "active-microbatches", "K", IN_BOTH,
     "most live micro-batches; a schedule that keeps more alive is refused"},
    {FLAG_GROUP, "group", "G", IN_BOTH,
     "micro-batches per group of chunked schedules (default: ranks)"},
    {FLAG_HEADING, "what is kept", NULL, 0, NULL},
    {FLAG_FIX, "fix", "PLAN[:STAGES]", IN_PLAN,
     "plan around a plan: ops that its stages (all, or such as 0,3-5) name stay there; it may name "
     "few ops, by patterns too; its other numbers hold where no option says otherwise"},
    {FLAG_CUT_AT, "cut-at", "PATTERN,...", IN_PLAN,
     "stages begin only at ops that match, such as 'h*.ln_1' (* any text, ? any character); "
     "layers: "
     "at whole layers, by the names of ops"},
    {FLAG_SCHEDULE_FROM, "schedule-from", "FILE", IN_PLAN,
     "the order of a schedule of torch.distributed.pipelining (CSV), with its ranks, chunks and "
     "micro-batches"},
    {FLAG_HEADING, "what is best", NULL, 0, NULL},
    {FLAG_OPTIMIZE, "optimize", "speed|memory", IN_PLAN, "(default speed)"},
    {FLAG_OBJECTIVE, "objective", "step|bottleneck", IN_BOTH,
     "simulated step time (default), or the slowest stage alone"},
    {FLAG_PLACEMENT, "placement", "cluster|spread|auto", IN_BOTH,
     "neighbours are the ranks of a pipeline (cluster), the replicas of a stage (spread), or "
     "whichever is faster, or another order of unequal devices (default); or D, P and T, "
     "neighbours "
     "last: DPT is cluster, PDT spread"},
    {FLAG_MEMORY, "memory", "SIZE", IN_BOTH, "limit per device (default: the device's)"},
    {FLAG_RECOMPUTE, "recompute", "none|auto|all", IN_BOTH,
     "stages that run forward again instead of keeping activations (default auto: those that do "
     "not fit otherwise)"},
    {FLAG_PARTITIONER, "partitioner", "NAME|auto", IN_BOTH,
     "one partitioner instead of the best of all: "},
    {FLAG_TIME_LIMIT, "time-limit", "SECONDS|none", IN_BOTH,
     "after it, the best plan so far is taken (default 10); named with --objective bottleneck, "
     "the proof takes all of it while a gap is open"},
    {FLAG_SEED, "seed", "S", IN_BOTH, "(default 1)"},
    {FLAG_HEADING, "output", NULL, 0, NULL},
    {FLAG_EXPLAIN, "explain", NULL, IN_BOTH,
     "why this plan: solver, bottleneck, bound, what would help, best configurations"},
    {FLAG_JSON, "json", NULL, IN_BOTH, "one JSON object instead of the table"},
    {FLAG_TRACE, "trace", "FILE.json", IN_BOTH,
     "predicted timeline (Chrome trace, opens in Perfetto)"},
    {FLAG_REPORT, "report", "FILE.html", IN_BOTH, "timeline, memory and stages as a page"},
    {FLAG_SVG, "svg", "FILE.svg", IN_BOTH, "timeline and memory as a figure"},
    {FLAG_EXPORT, "export", "FORMAT:FILE", IN_BOTH, "for another program: "},
    {FLAG_HELP, "help", NULL, IN_BOTH, "this text"},
    {FLAG_VERSION, "version", NULL, IN_BOTH, "versions of smp-partition and its libraries"},
};
enum { N_ENTRY = sizeof entries / sizeof entries[0] };

static void put_exporters(smp_text *text)
{
    for (const smp_exporter *const *e = smp_exporters(); *e; e++)
        smp_text_append(text, "%s%s", e == smp_exporters() ? "" : ", ", (*e)->name);
}

/* Words from column HELP_COLUMN on, broken before HELP_WIDTH; the line stands at `column`. */
static void put_wrapped(const char *words, int column, smp_text *text)
{
    bool first = true;
    while (*words) {
        int length = (int)strcspn(words, " ");
        if (column >= HELP_COLUMN && !first && column + 1 + length > HELP_WIDTH) {
            smp_text_append(text, "\n");
            column = 0;
            first = true;
        }
        if (column > HELP_COLUMN - 1 && first) {
            smp_text_append(text, "\n");
            column = 0;
        }
        if (column < HELP_COLUMN)
            smp_text_append(text, "%*s", HELP_COLUMN - column, "");
        else
            smp_text_append(text, " ");
        column = (column < HELP_COLUMN ? HELP_COLUMN : column + 1) + length;
        smp_text_append(text, "%.*s", length, words);
        first = false;
        words += length + (words[length] == ' ');
    }
    smp_text_append(text, "\n");
}

static void put_entry(const option_entry *entry, smp_text *text)
{
    char head[96];
    smp_text help = {0};
    if (entry->flag == FLAG_HEADING) {
        smp_text_append(text, "%s\n", entry->name);
        return;
    }
    int column = snprintf(head, sizeof head, "  %s%s%s%s", entry->name[1] ? "--" : "-", entry->name,
                          entry->value ? " " : "", entry->value ? entry->value : "");
    smp_text_append(&help, "%s", entry->help);
    if (entry->flag == FLAG_PIPELINE)
        smp_schedule_put_names(&help);
    else if (entry->flag == FLAG_PARTITIONER)
        smp_partitioner_put_names(&help);
    else if (entry->flag == FLAG_EXPORT)
        put_exporters(&help);
    smp_text_append(text, "%s", head);
    put_wrapped(help.data ? help.data : "", column, text);
    text->failed |= help.failed;
    smp_text_free(&help);
}

smp_status smp_partition_usage(smp_text *text)
{
    smp_text_append(
        text,
        "usage: smp-partition MODEL [-o plan.yaml] [options]\n"
        "       smp-partition check PLAN [options]\n"
        "\n"
        "Splits a model into pipeline stages and schedules micro-batches through them. Prints "
        "a table of\n"
        "stages; -o writes the plan. What is left out is auto: the least simulated time per\n"
        "sample that fits; within 1 %% of it the fewest micro-batches, then the smallest "
        "peak.\n"
        "\n"
        "check judges a plan: all that is illegal in it, what it costs, and how far it is "
        "from the best.\n"
        "It also judges schedules of others, CSVs of torch.distributed.pipelining, Megatron-LM's "
        "layouts and\n"
        "DeepSpeed's parts: complete, free of deadlock, what they keep and take, what is better.\n"
        "The plan may be a sketch: `smp: 1` and `stages:`, a list of {ops: [...]}, ops by "
        "name, by\n"
        "pattern ('h0.*') or as a range (wte..h0.res_2). The rest is filled in: ranks as the "
        "schedule\n"
        "places stages, interleaved, no replicas, 4 micro-batches per rank.\n"
        "\n");
    for (int i = 0; i < N_ENTRY; i++)
        put_entry(&entries[i], text);
    smp_text_append(text, "\n"
                          "exit codes: 0 done, 1 failed, 2 wrong usage, bad input or an illegal "
                          "plan, 3 no plan fits\n");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

/* Words stand in the table in the order of their enumerations. */
static smp_status set_choice(smp_partition_options *o, const option_entry *entry, const char *name,
                             const char *text)
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
    default:
        r->recompute = (smp_recompute)choice;
        return SMP_OK;
    }
}

static smp_status set_search_option(smp_partition_options *o, const option_entry *entry,
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
    case FLAG_GROUP:
        return smp__parse_count(name, text, false, &r->group);
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
                                const option_entry *entry, const char *text)
{
    int choice;
    bool far;
    SMP_TRY(smp__parse_placement(name, entry->value, text, &choice, &far));
    o->request.placement = (smp_placement)choice;
    o->has_placement = o->request.placement != SMP_PLACEMENT_AUTO;
    o->far_tensor = far ? text : NULL;
    return SMP_OK;
}

static smp_status set_option(smp_partition_options *o, const option_entry *entry, const char *text)
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

static const option_entry *find_entry(int option)
{
    int i = 0;
    while (i < N_ENTRY && entries[i].flag != option)
        i++;
    return i < N_ENTRY ? &entries[i] : NULL;
}

static void make_long_options(struct option *out)
{
    int n = 0;
    for (int i = 0; i < N_ENTRY; i++) {
        const option_entry *e = &entries[i];
        if (e->flag > FLAG_HEADING)
            out[n++] =
                (struct option){e->name, e->value ? required_argument : no_argument, NULL, e->flag};
    }
    out[n] = (struct option){NULL, 0, NULL, 0};
}

smp_status smp_partition_options_parse(int argc, char **argv, smp_partition_options *o)
{
    struct option long_options[N_ENTRY + 1];
    make_long_options(long_options);
    *o = (smp_partition_options){.time_limit_s = 10,
                                 .tensor = 1,
                                 .request = {.seed = 1,
                                             .recompute = SMP_RECOMPUTE_AUTO,
                                             .placement = SMP_PLACEMENT_AUTO,
                                             .advise = true,
                                             .sharding = {.bucket_bytes = SMP_BUCKET_AUTO,
                                                          .node_replicas = SMP_HOPS_AUTO,
                                                          .prefetch = SMP_PREFETCH_AUTO},
                                             .any_shard_what = true}};
    o->check = argc > 1 && strcmp(argv[1], "check") == 0;
    opterr = 0;
    optind = o->check ? 2 : 1;
    for (int option; (option = getopt_long(argc, argv, ":o:n:", long_options, NULL)) != -1;) {
        const option_entry *entry = find_entry(option);
        if (!entry)
            return smp_usage_bad_option(argv[optind - 1], option == ':', long_options);
        SMP_TRY(set_option(o, entry, optarg));
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
    return SMP_OK;
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
