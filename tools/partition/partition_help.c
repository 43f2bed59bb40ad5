/* The options of smp-partition and their help. Names of schedules, partitioners and export formats
 * come from their registries. */
#include "tools/partition/partition_flags.h"

#include <stdio.h>
#include <string.h>

#include "tools/partition/partition_options.h"

enum { HELP_COLUMN = 32, HELP_WIDTH = 98 };

const smp__option_entry smp__partition_entries[] = {
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
    {FLAG_PRECISION, "precision", "fp32|tf32|bf16|fp16", IN_BOTH,
     "number format there, tf32 on cuda alone (default: as --device, else fp32)"},
    {FLAG_STATE_PRECISION, "state-precision", "fp32|bf16", IN_BOTH,
     "states of the optimizer: half of the bytes, rounded at random, without bias (default: the "
     "plan's with check and --fix, else fp32)"},
    {FLAG_MODEL, "model", "FILE", IN_CHECK, "the model of the plan (default: the one it names)"},
    {FLAG_COSTS, "costs", "PLAN", IN_CHECK,
     "what the stages of a schedule of another framework take: those of this plan (default: "
     "forward 1, backward 2)"},
    {FLAG_SAME_BITS_AS, "same-bits-as", "PLAN", IN_CHECK,
     "say only whether both plans train to the same bits (exit code 0), or the first reason why "
     "not "
     "(1)"},
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
    {FLAG_SPLIT_FROM, "split-from", "PLAN", IN_PLAN,
     "as many devices compute each op together as in this plan, split as there; its stages and all "
     "else are searched"},
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
     "replicas of one node that sums and gathers go through before nodes (default auto: the "
     "shortest step)"},
    {FLAG_GRADIENT_WIRE, "gradient-wire", "fp32|bf16", IN_BOTH,
     "sums of gradients over replicas send half of the bytes, rounded; they are added in fp32 "
     "(default: the plan's with check and --fix, else fp32)"},
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
     "most live micro-batches: simple runs in rounds of K; what keeps more alive is refused"},
    {FLAG_WEIGHT_LAG, "weight-lag", "K|auto", IN_BOTH,
     "zero-bubble of one chunk: most micro-batches whose weight gradients are still to come, that "
     "at hand too; 1: each follows at once (default auto: fewer where memory asks for it)"},
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
    {FLAG_OFFLOAD, "offload", "none|auto|all", IN_BOTH,
     "what forwards keep for backwards goes to host memory in between (default auto: of ranks that "
     "do not fit otherwise, where the cluster has `links: host`; check: what the plan says)"},
    {FLAG_LOADING_HORIZON, "loading-horizon", "K|auto", IN_BOTH,
     "compute actions that each transfer has to hide behind (default auto: 1, 2 or 4)"},
    {FLAG_OFFLOAD_STATES, "offload-states", "none|auto|all", IN_BOTH,
     "the optimizer's states, and fp32 values of weights that a GPU reads in 16 bits alone, lie in "
     "host memory, and are updated there, on a GPU beside the next step (default auto: where "
     "memory is short and no plan with them on the device is faster by more than 1 %, and the "
     "cluster "
     "has `links: host`; all, or no value: anyway; check: what the plan says)"},
    {FLAG_PARTITIONER, "partitioner", "NAME|auto", IN_BOTH,
     "one partitioner instead of the best of all: "},
    {FLAG_TIME_LIMIT, "time-limit", "SECONDS|none", IN_BOTH,
     "after it, the best plan so far is taken (default 10); named with --objective bottleneck, "
     "the proof takes all of it while a gap is open"},
    {FLAG_SEED, "seed", "S", IN_BOTH, "(default 1)"},
    {FLAG_HEADING, "output", NULL, 0, NULL},
    {FLAG_EXPLAIN, "explain", NULL, IN_BOTH,
     "why this plan: solver, bottleneck, bound, what would help, best configurations"},
    {FLAG_JSON, "json", NULL, IN_BOTH,
     "one JSON object instead of the table; with --explain its key \"explanation\" has the "
     "reasons"},
    {FLAG_TRACE, "trace", "FILE.json", IN_BOTH,
     "predicted timeline (Chrome trace, opens in Perfetto)"},
    {FLAG_REPORT, "report", "FILE.html", IN_BOTH, "timeline, memory and stages as a page"},
    {FLAG_SVG, "svg", "FILE.svg", IN_BOTH, "timeline and memory as a figure"},
    {FLAG_EXPORT, "export", "FORMAT:FILE", IN_BOTH, "for another program: "},
    {FLAG_HELP, "help", NULL, IN_BOTH, "this text"},
    {FLAG_VERSION, "version", NULL, IN_BOTH, "versions of smp-partition and its libraries"},
    {0, NULL, NULL, 0, NULL},
};

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

static void put_entry(const smp__option_entry *entry, smp_text *text)
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
    for (const smp__option_entry *e = smp__partition_entries; e->flag; e++)
        put_entry(e, text);
    smp_text_append(text, "\n"
                          "exit codes: 0 done, 1 failed, 2 wrong usage, bad input or an illegal "
                          "plan, 3 no plan fits\n");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
