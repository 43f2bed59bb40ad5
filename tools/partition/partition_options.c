/* Options of smp-partition: the table, and what is made of what is given; see the header. */
#include "tools/partition/partition_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/text.h"
#include "exec/start/planning.h"

enum { IN_PLAN = 1, IN_CHECK = 2, IN_BOTH = 3, IN_COMPARE = 4, IN_ALL = 7 };

#define AT(field) offsetof(smp_partition_options, field)
#define PLANNING(field) AT(job.planning.field)

static const smp_option_word or_auto[] = {{"auto", 0}, {0}}, or_none[] = {{"none", 0}, {0}},
                             auto_or_number[] = {{"auto", SMP_DEFAULT}, {0}},
                             auto_or_none[] = {{"auto", SMP_DEFAULT}, {"none", 0}, {0}};

static smp_status set_schedule(void *options, const char *name, const char *text)
{
    if (!smp_schedule_find(text))
        return smp_schedule_fail_name(name, text);
    ((smp_partition_options *)options)->job.planning.schedule = text;
    return SMP_OK;
}

static smp_status set_partitioner(void *options, const char *name, const char *text)
{
    ((smp_partition_options *)options)->job.planning.partitioner = text;
    return strcmp(text, "auto") == 0 ? SMP_OK : smp_partitioner_check(name, text);
}

static smp_status set_placement(void *options, const char *name, const char *text)
{
    smp_placement placement;
    bool neighbours;
    ((smp_partition_options *)options)->job.planning.placement = text;
    return smp__placement_read(name, text, &placement, &neighbours);
}

/* "PLAN:0,3-5", unless that is a file. */
static smp_status set_fix(void *options, const char *name, const char *text)
{
    smp_partition_options *o = options;
    (void)name;
    const char *colon = strrchr(text, ':');
    free(o->fix_text);
    o->fix_text = NULL;
    o->job.planning.fix = text;
    o->job.planning.fix_stages = NULL;
    if (!colon || colon == text || access(text, R_OK) == 0 ||
        strspn(colon + 1, "0123456789,-") != strlen(colon + 1))
        return SMP_OK;
    o->fix_text = strdup(text);
    if (!o->fix_text)
        return smp_fail_memory(strlen(text));
    o->fix_text[colon - text] = '\0';
    o->job.planning.fix = o->fix_text;
    o->job.planning.fix_stages = o->fix_text + (colon - text) + 1;
    return SMP_OK;
}

static smp_status add_export(void *options, const char *name, const char *text)
{
    smp_partition_options *o = options;
    if (o->n_export == SMP_MAX_EXPORTS)
        return smp_fail(SMP_ERR_INPUT, "%s: more than %d", name, SMP_MAX_EXPORTS);
    SMP_TRY(smp_export_parse(name, text, &o->exporter[o->n_export], &o->export_path[o->n_export]));
    o->n_export++;
    return SMP_OK;
}

static void put_exporters(smp_text *text)
{
    for (const smp_exporter *const *e = smp_exporters(); *e; e++)
        smp_text_append(text, "%s%s", e == smp_exporters() ? "" : ", ", (*e)->name);
}

static const smp_option rows[] = {
    {"o", .kind = SMP_OPTION_FILE, .flags = IN_BOTH, .value = "FILE", .at = AT(output),
     .help = "where to write the plan (check: with all filled in)"},
    {"n", .kind = SMP_OPTION_INT, .flags = IN_PLAN, .value = "DEVICES", .at = PLANNING(devices),
     .least = 1, .most = SMP_MAX_COUNT,
     .help = "devices to use (default: all of the cluster; without a cluster stages x ddp, "
             "or one per core)"},
    {"cluster", .kind = SMP_OPTION_FILE, .flags = IN_BOTH, .value = "FILE", .at = PLANNING(cluster),
     .help = "devices and links (default: the plan's own with check and --fix, else this "
             "machine)"},
    {"profile", .kind = SMP_OPTION_FILE, .flags = IN_BOTH, .value = "FILE", .at = PLANNING(profile),
     .help = "measured costs from smp-profile (default: estimated)"},
    {"device", .kind = SMP_OPTION_WORD, .flags = IN_BOTH, .value = SMP_BACKEND_WORDS,
     .at = AT(job.runtime.device),
     .help = "what the plan is run on (default: what the plan with check and --fix says, or "
             "the profile was measured on, else cpu)"},
    {"precision", .kind = SMP_OPTION_WORD, .flags = IN_BOTH, .value = "fp32|tf32|bf16|fp16|fp8",
     .at = AT(job.runtime.precision),
     .help = "number format there, tf32 on cuda alone, fp8 on cards that have it (default: as "
             "--device, else fp32)"},
    {"model", .kind = SMP_OPTION_FILE, .flags = IN_CHECK, .value = "FILE", .at = AT(job.model),
     .help = "the model of the plan (default: the one it names)"},
    {"costs", .kind = SMP_OPTION_FILE, .flags = IN_CHECK, .value = "PLAN", .at = AT(costs),
     .help = "what the stages of a schedule of another framework take: those of this plan "
             "(default: forward 1, backward 2)"},
    {"same-bits-as", .kind = SMP_OPTION_FILE, .flags = IN_CHECK, .value = "PLAN",
     .at = AT(same_bits_as),
     .help = "say only whether both plans train to the same bits (exit code 0), or the first "
             "reason why not (1)"},
    {"plugin", .kind = SMP_OPTION_LIST, .flags = IN_ALL, .value = "FILE.so", .at = AT(plugins),
     .help = "operators of your own that the model uses (smp_op_register); repeatable"},
    {"what is trained", .kind = SMP_OPTION_HEADING},
    {"set", .kind = SMP_OPTION_LIST, .flags = IN_PLAN, .value = "NAME=VALUE", .at = AT(set),
     .help = "another value for an entry of the model's 'let', such as T=4096; repeatable, kept "
             "in the plan (default: the plan's with --fix)"},
    {"freeze", .kind = SMP_OPTION_LIST, .flags = IN_PLAN, .value = "PATTERN", .at = AT(freeze),
     .help = "weights that match, such as 'wte.*', are not trained; repeatable (default: the "
             "plan's with --fix, else none)"},
    {"global-batch", .kind = SMP_OPTION_INT64, .flags = IN_PLAN, .value = "N",
     .alias = "global-batch-size", .at = PLANNING(global_batch), .least = 1, .most = SMP_MAX_BATCH,
     .help = "samples of a step of all replicas in every configuration "
             "(default: what --microbatches come to, else 512, or the least above that the "
             "degrees divide)"},
    {"gradient-blocks", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "N",
     .at = PLANNING(gradient_blocks), .least = 1, .most = SMP_MAX_COUNT,
     .help = "gradients are added in N blocks of the batch: the same bits for every ddp up to N "
             "(default: the plan's, or ddp)"},
    {"gradient-wire", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "fp32|bf16",
     .at = PLANNING(gradient_wire),
     .help = "sums of gradients over replicas send half of the bytes, rounded; they are "
             "added in fp32 (default: the plan's with check and --fix, else fp32)"},
    {"state-precision", .kind = SMP_OPTION_WORD, .flags = IN_BOTH, .value = "fp32|bf16",
     .at = PLANNING(state_precision),
     .help = "states of the optimizer: half of the bytes, rounded at random, without bias "
             "(default: the plan's with check and --fix, else fp32)"},
    {"what is searched, where no option says it", .kind = SMP_OPTION_HEADING},
    {"stages", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "P|auto", .at = PLANNING(stages),
     .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "pipeline ranks (default auto: any number that divides the devices)"},
    {"ddp", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "D|auto", .at = PLANNING(ddp),
     .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "replicas (default auto: the devices over the ranks of a pipeline)"},
    {"tensor", .kind = SMP_OPTION_INT, .flags = IN_PLAN, .value = "T|auto", .at = PLANNING(tensor),
     .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "devices that compute each op together (tensor parallelism), neighbours of one "
             "node, or those of several; how each op is split is chosen; another T gives other "
             "bits (default: the plan's with --fix, else auto: powers of two up to a node, for "
             "each stage its own where that pays or alone fits)"},
    {"tensor-overlap", .kind = SMP_OPTION_CHOICE, .flags = IN_PLAN, .value = "auto|no|yes",
     .at = PLANNING(tensor_overlap),
     .help = "weight gradients are put off and made while a group exchanges those of "
             "activations (default: the plan's with --fix, else auto: where that hides "
             "something and fits)"},
    {"split", .kind = SMP_OPTION_LIST, .flags = IN_PLAN, .value = "PATTERN:RULE", .at = AT(split),
     .help = "ops that match are split so, such as 'h*.mlp.fc:columns', or 'whole'; with "
             "--tensor, repeatable, a later one wins"},
    {"split-from", .kind = SMP_OPTION_FILE, .flags = IN_PLAN, .value = "PLAN|CHECKPOINT",
     .at = PLANNING(split_from),
     .help =
         "as many devices compute each op together as in this plan, or in the job that wrote this "
         "checkpoint (a file, or their directory), split as there; stages and all else are "
         "searched"},
    {"shard", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "S|auto", .at = PLANNING(shard),
     .least = 1, .most = SMP_MAX_COUNT, .words = auto_or_number,
     .help = "replicas that hold one copy of the states together, each a part: divides ddp; 1: "
             "none; auto: any degree is searched (default: the plan's with check and --fix, else "
             "all replicas or those of a node, where that is faster or memory asks for it)"},
    {"shard-what", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH,
     .value = "optimizer|gradients|weights", .at = PLANNING(shard_what),
     .help = "which states: those of the optimizer (default with a number), gradients too, "
             "weights too (else: any)"},
    {"prefetch", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "K|auto",
     .at = PLANNING(prefetch), .most = SMP_MAX_COUNT, .words = auto_or_number,
     .help = "sharded weights are gathered K runs of a chunk ahead of use, 0: right before "
             "it (default auto: 1, 0 where only that fits, 2 where it is faster and fits)"},
    {"node-replicas", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "N|none|auto",
     .at = PLANNING(node_replicas), .least = 1, .most = SMP_MAX_COUNT, .words = auto_or_none,
     .help = "replicas of one node that sums and gathers go through before nodes (default "
             "auto: the shortest step)"},
    {"bucket-bytes", .kind = SMP_OPTION_BYTES, .flags = IN_BOTH, .value = "SIZE|none|auto",
     .at = PLANNING(bucket_bytes), .words = auto_or_none,
     .help = "gradients are reduced in buckets of this size while the last backward still "
             "makes others (default auto: by latency and bandwidth; none where cores move "
             "the data)"},
    {"chunks", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "V|auto", .at = PLANNING(chunks),
     .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "stages per pipeline rank (default auto: 1, 2 and 4; 8 of long models; up to 12 that "
             "divide equal layers; more where weights are gathered or stages are pinned)"},
    {"microbatches", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "M|auto",
     .at = PLANNING(microbatches), .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "micro-batches per replica and step (default auto: as many as make the batch; "
             "check: the plan's, else 4 x ranks)"},
    {"microbatch-size", .kind = SMP_OPTION_INT64, .flags = IN_BOTH, .value = "B",
     .at = PLANNING(microbatch_size), .least = 1, .most = SMP_MAX_COUNT,
     .help = "samples in a micro-batch (default: the plan's, the profile's, else "
             "any of 1, 2, 4 and 8; 1 with --microbatches)"},
    {"pipeline", .kind = SMP_OPTION_OWN, .flags = IN_BOTH, .value = "NAME|auto",
     .alias = "schedule", .set = set_schedule, .names = smp_schedule_put_names,
     .help = "schedule: "},
    {"active-microbatches", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "K",
     .at = PLANNING(active_microbatches), .least = 1, .most = SMP_MAX_COUNT,
     .help = "most live micro-batches: simple runs in rounds of K; what keeps more alive is "
             "refused"},
    {"weight-lag", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "K|auto",
     .at = PLANNING(weight_lag), .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "zero-bubble of one chunk: most micro-batches whose weight gradients are still "
             "to come, that at hand too; 1: each follows at once (default auto: fewer where "
             "memory asks for it)"},
    {"group", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "G", .at = PLANNING(group),
     .least = 1, .most = SMP_MAX_COUNT,
     .help = "micro-batches per group of chunked schedules (default: ranks)"},
    {"placement", .kind = SMP_OPTION_OWN, .flags = IN_BOTH, .value = "cluster|spread|auto",
     .set = set_placement,
     .help = "neighbours are the ranks of a pipeline (cluster) or the replicas of a stage "
             "(spread); or D, P and T, neighbours last: DPT is cluster, PDT spread (default "
             "auto: both, and other orders of unequal devices or of up to 8 on several nodes)"},
    {"memory", .kind = SMP_OPTION_HEADING},
    {"memory", .kind = SMP_OPTION_BYTES, .flags = IN_BOTH, .value = "SIZE",
     .at = PLANNING(memory_bytes),
     .help = "limit per device (default: the device's, less on GPUs what NCCL may take)"},
    {"recompute", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "none|auto|all",
     .at = PLANNING(recompute),
     .help = "stages that run forward again instead of keeping activations (default auto: "
             "those that do not fit otherwise)"},
    {"offload", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "none|auto|all",
     .at = PLANNING(offload),
     .help = "what forwards keep for backwards goes to host memory in between (default auto: "
             "of ranks that do not fit otherwise, where the cluster has `links: host`; "
             "check: what the plan says)"},
    {"loading-horizon", .kind = SMP_OPTION_INT, .flags = IN_BOTH, .value = "K|auto",
     .at = PLANNING(loading_horizon), .least = 1, .most = SMP_MAX_COUNT, .words = or_auto,
     .help = "compute actions that each transfer takes place beside (default auto: 1, 2 or "
             "4)"},
    {"offload-states", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "none|auto|all",
     .at = PLANNING(offload_states), .may_miss = true,
     .help = "the optimizer's states, and fp32 values of weights that a GPU reads in 16 bits "
             "alone, lie in host memory, and are updated there, on a GPU beside the next "
             "step (default auto: where memory is short and no plan with them on the device "
             "is faster by more than 1 %, and the cluster has `links: host`; all, or no "
             "value: anyway; check: what the plan says)"},
    {"what is kept", .kind = SMP_OPTION_HEADING},
    {"fix", .kind = SMP_OPTION_OWN, .flags = IN_PLAN, .value = "PLAN[:STAGES]", .set = set_fix,
     .help = "plan around a plan: ops that its stages (all, or such as 0,3-5) name stay "
             "there; it may name few ops, by patterns too; its other numbers hold where no "
             "option says otherwise"},
    {"cut-at", .kind = SMP_OPTION_LIST, .flags = IN_PLAN, .value = "PATTERN,...", .at = AT(cut_at),
     .help = "stages begin only at ops that match, such as 'h*.ln_1' (* any text, ? any "
             "character); layers: at whole layers, by the names of ops"},
    {"schedule-from", .kind = SMP_OPTION_FILE, .flags = IN_PLAN, .value = "FILE",
     .at = PLANNING(schedule_from),
     .help = "the order of a schedule of torch.distributed.pipelining (CSV), with its ranks, "
             "chunks and micro-batches"},
    {"how it is searched", .kind = SMP_OPTION_HEADING},
    {"optimize", .kind = SMP_OPTION_CHOICE, .flags = IN_PLAN, .value = "speed|memory",
     .at = PLANNING(optimize), .help = "(default speed)"},
    {"objective", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "step|bottleneck",
     .at = PLANNING(objective),
     .help = "simulated step time (default), or the slowest stage alone"},
    {"partitioner", .kind = SMP_OPTION_OWN, .flags = IN_BOTH, .value = "NAME|auto",
     .set = set_partitioner, .names = smp_partitioner_put_names,
     .help = "one partitioner instead of the best of all: "},
    {"effort", .kind = SMP_OPTION_CHOICE, .flags = IN_BOTH, .value = "quick|normal|high|full",
     .at = PLANNING(effort),
     .help = "work after which the best plan so far is taken: about 1, 10 (default) or 100 "
             "seconds of one core, counted in steps, so that plans are the same on every "
             "machine; full: no limit; high with --objective bottleneck: the proof takes all "
             "of it while a gap is open"},
    {"time-limit", .kind = SMP_OPTION_SECONDS, .flags = IN_BOTH, .value = "SECONDS|none",
     .at = PLANNING(time_limit_s), .above = true, .words = or_none,
     .help = "seconds of the processor after which the same happens, where that is earlier "
             "(default none)"},
    {"seed", .kind = SMP_OPTION_SEED, .flags = IN_BOTH, .value = "S", .at = PLANNING(seed),
     .most = SMP_OPTION_NO_LIMIT, .help = "(default 1)"},
    {"output", .kind = SMP_OPTION_HEADING},
    {"explain", .kind = SMP_OPTION_YES, .flags = IN_BOTH, .at = AT(explain),
     .help = "why this plan: solver, bottleneck, bound, what would help, best configurations"},
    {"json", .kind = SMP_OPTION_YES, .flags = IN_BOTH, .at = AT(json),
     .help = "one JSON object instead of the table; with --explain its key \"explanation\" "
             "has the reasons"},
    {"trace", .kind = SMP_OPTION_FILE, .flags = IN_BOTH, .value = "FILE.json", .at = AT(trace),
     .help = "predicted timeline (Chrome trace, opens in Perfetto)"},
    {"report", .kind = SMP_OPTION_FILE, .flags = IN_BOTH, .value = "FILE.html", .at = AT(report),
     .help = "timeline, memory and stages as a page"},
    {"svg", .kind = SMP_OPTION_FILE, .flags = IN_ALL, .value = "FILE.svg", .at = AT(svg),
     .help = "timeline and memory as a figure; of several plans a bar for each"},
    {"events", .kind = SMP_OPTION_FILE, .flags = IN_CHECK, .value = "FILE.jsonl", .at = AT(events),
     .help = "of smp-run --elastic: --report shows that job's life, too, --svg nothing else"},
    {"sweep", .kind = SMP_OPTION_LIST, .flags = IN_PLAN, .value = "KEY=V,V,...", .at = AT(sweep),
     .help = "a plan for each value of an option, such as global-batch=256,512 or "
             "n=64,128, or of an entry of the model's 'let' (T=2048,4096), and a table of "
             "them; repeatable: for all combinations"},
    {"csv", .kind = SMP_OPTION_FILE, .flags = IN_PLAN | IN_COMPARE, .value = "FILE.csv",
     .at = AT(csv), .help = "the table of several plans (compare, --sweep), in SI units"},
    {"tokens", .kind = SMP_OPTION_FLOAT, .flags = IN_PLAN | IN_COMPARE, .value = "N",
     .at = AT(tokens), .above = true, .most = 1e18,
     .help = "of a whole training, such as 500e9: how many days it takes"},
    {"price", .kind = SMP_OPTION_FLOAT, .flags = IN_PLAN | IN_COMPARE, .value = "X",
     .at = AT(price), .above = true, .help = "of a device hour: what that costs"},
    {"keep-every", .kind = SMP_OPTION_INT64, .flags = IN_BOTH, .value = "K", .at = AT(keep_every),
     .least = 1,
     .help = "what it costs that a run keeps its state in memory after every K-th step: memory of "
             "the host, time of a step. More than the cluster's host_memory: exit code 3"},
    {"export", .kind = SMP_OPTION_OWN, .flags = IN_BOTH, .value = "FORMAT:FILE", .set = add_export,
     .names = put_exporters, .help = "for another program: "},
    {0},
};

static smp_status check_command(const void *options, const smp_option *row, const char *name)
{
    const smp_partition_options *o = options;
    if (row->flags & (o->check ? IN_CHECK : o->compare ? IN_COMPARE : IN_PLAN))
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: not an option of smp-partition %s", name,
                    o->check     ? "check PLAN"
                    : o->compare ? "compare PLAN..."
                                 : "MODEL");
}

/* What it sets is of the job, and setting it again replaces that. */
static bool can_sweep(const smp_option *row)
{
    const size_t begin = AT(job), end = begin + sizeof(smp_options);
    if (!(row->flags & IN_PLAN) || !row->value || row->kind == SMP_OPTION_LIST)
        return false;
    if (row->kind == SMP_OPTION_OWN)
        return row->set != set_fix && row->set != add_export;
    return row->at >= begin && row->at < end;
}

bool smp_partition_options_plan(const smp_option *row)
{
    const size_t lists[] = {AT(set), AT(split), AT(cut_at), AT(freeze)};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (row->kind == SMP_OPTION_LIST && row->at == lists[i])
            return true;
    return can_sweep(row);
}

static const smp_option *find_row(const char *name)
{
    for (const smp_option *row = rows; row->name; row++)
        if (strcmp(row->name, name) == 0 || (row->alias && strcmp(row->alias, name) == 0))
            return row;
    return NULL;
}

bool smp_partition_options_know(const char *key)
{
    return find_row(key) != NULL;
}

smp_status smp_partition_options_set(smp_partition_options *options, const char *key,
                                     const char *value)
{
    const smp_option *row = find_row(key);
    char name[64];
    snprintf(name, sizeof name, "--sweep: %s", key);
    if (row && can_sweep(row))
        return smp_options_set(row, name, value, options);
    return smp_fail(SMP_ERR_INPUT, "--sweep: '%s' is no option of the search", key);
}

/* Lists lie in `o`, which may be a copy. */
void smp_partition_options_settle(smp_partition_options *o)
{
    smp_plan_options *p = &o->job.planning;
    p->set = o->set.item;
    p->n_set = o->set.n;
    p->split = o->split.item;
    p->n_split = o->split.n;
    p->cut_at = o->cut_at.item;
    p->n_cut_at = o->cut_at.n;
    p->freeze = o->freeze.item;
    p->n_freeze = o->freeze.n;
}

smp_status smp_partition_options_let(smp_partition_options *options, const char *setting)
{
    SMP_TRY(smp_options_set(find_row("set"), "--sweep", setting, options));
    smp_partition_options_settle(options);
    return SMP_OK;
}

const smp_option_table smp__partition_table = {
    .program = "smp-partition",
    .summary = "split a model into pipeline stages, or judge a plan",
    .operand = "smp-partition MODEL",
    .argument = "model",
    .usage = "smp-partition MODEL [-o plan.yaml] [options]\nsmp-partition check PLAN "
             "[options]\nsmp-partition compare PLAN... [options]",
    .about = "Splits a model into pipeline stages and schedules micro-batches through "
             "them. Prints a table of stages; -o writes the plan. What is left out is "
             "auto: the least simulated time per sample that fits; within 1 % of it the "
             "fewest micro-batches, then the smallest peak.\n\ncheck judges a plan: all "
             "that is illegal in it, what it costs, and how far it is from the best. It "
             "also judges schedules of others, CSVs of torch.distributed.pipelining, "
             "Megatron-LM's layouts and DeepSpeed's parts: complete, free of deadlock, "
             "what they keep and take, what is better. The plan may be a sketch: `smp: 1` "
             "and `stages:`, a list of {ops: [...]}, ops by name, by pattern ('h0.*') or "
             "as a range (wte..h0.res_2). The rest is filled in: ranks as the schedule "
             "places stages, interleaved, no replicas, 4 micro-batches per rank.\n\ncompare "
             "prints a table of plans: their batch, speed, MFU, memory, bubble, and where "
             "their time goes.",
    .exits = "exit codes: 0 done, 1 failed, 2 wrong usage, bad input or an illegal plan, 3 "
             "no plan fits",
    .row = rows,
    .check = check_command,
};

static smp_status spare_file(const smp_partition_options *o, const char *read)
{
    const char *const written[] = {o->output, o->trace, o->report, o->svg, o->csv};
    for (size_t k = 0; k < sizeof written / sizeof written[0]; k++)
        SMP_TRY(smp_file_spares(written[k], read));
    for (int k = 0; k < o->n_export; k++)
        SMP_TRY(smp_file_spares(o->export_path[k], read));
    return SMP_OK;
}

/* No file that is read is written, too. */
static smp_status check_files(const smp_partition_options *o)
{
    const smp_plan_options *p = &o->job.planning;
    const char *const read[] = {o->job.model,  o->plan,          p->fix,   p->cluster,
                                p->profile,    p->schedule_from, o->costs, o->same_bits_as,
                                p->split_from, o->common.config, o->events};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        SMP_TRY(spare_file(o, read[i]));
    for (int i = 0; i < o->plugins.n; i++)
        SMP_TRY(spare_file(o, o->plugins.item[i]));
    for (int i = 0; i < o->common.n_more; i++)
        SMP_TRY(spare_file(o, o->common.more[i]));
    return SMP_OK;
}

/* What makes no sense together. */
static smp_status check_several(const smp_partition_options *o)
{
    if (o->price > 0 && o->tokens <= 0)
        return smp_fail(SMP_ERR_INPUT, "--price: of what training? --tokens N says it");
    if (o->events && !o->report && !o->svg)
        return smp_fail(SMP_ERR_INPUT,
                        "--events: is drawn by --report FILE.html or --svg FILE.svg");
    if (o->sweep.n == 0)
        return o->csv && !o->compare
                   ? smp_fail(SMP_ERR_INPUT, "--csv: is of several plans: --sweep makes them")
                   : SMP_OK;
    if (o->output || o->trace || o->report || o->explain || o->json || o->n_export > 0 ||
        o->keep_every > 0)
        return smp_fail(SMP_ERR_INPUT, "--sweep: makes a table, CSV and SVG of several plans, no "
                                       "file of one");
    return SMP_OK;
}

smp_status smp_partition_options_parse(int argc, char **argv, smp_partition_options *o)
{
    smp_option_table table = smp__partition_table;
    *o = (smp_partition_options){.job = smp_options_default()};
    o->check = argc > 1 && strcmp(argv[1], "check") == 0;
    o->compare = argc > 1 && strcmp(argv[1], "compare") == 0;
    if (o->check)
        table.operand = "smp-partition check PLAN", table.argument = "plan";
    if (o->compare) {
        table.operand = "smp-partition compare PLAN...", table.argument = "plan";
        table.several = true;
    }
    SMP_TRY(smp_options_read(&table, argc, argv, o->check || o->compare ? 2 : 1, o));
    *(o->check || o->compare ? &o->plan : &o->job.model) = o->common.operand;
    smp_partition_options_settle(o);
    SMP_TRY(check_several(o));
    return check_files(o);
}

void smp_partition_options_free(smp_partition_options *options)
{
    free(options->fix_text);
    smp_options_close(options);
}
