/* The options of smp-run, and what a run that is resumed had of them; see the header. */
#include "tools/run/run_options.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "exec/data/data_source.h"
#include "exec/device/device.h"
#include "exec/optimizer/lr_schedule.h"
#include "exec/optimizer/optimizer.h"
#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/kept_folder.h"
#include "graph/base/text.h"
#include "graph/safetensors/name_family.h"

/* An option of the run, not of the job: who resumes it goes on with it, unless told otherwise. */
enum { KEPT = 1 };

#define AT(field) offsetof(smp__run_options, field)

static smp_status set_period(void *options, const char *name, const char *text)
{
    smp_train_options *train = &((smp__run_options *)options)->train;
    double seconds = 0.0;
    bool unit;
    const bool is_time = smp_parse_time(text, &seconds, &unit) && unit && seconds > 0.0;
    train->save_every = 0;
    train->save_every_s = is_time ? seconds : 0.0;
    if (!is_time && (!smp_parse_int(text, &train->save_every) || train->save_every < 1 ||
                     train->save_every > 1000000000))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%s', expected a whole number of steps from 1 to 1e9, or a time "
                        "such as 90s, 10m or 1.5h",
                        name, text);
    return SMP_OK;
}

/* In parts of SMP__WHOLE. */
static smp_status set_share(void *options, const char *name, const char *text)
{
    double value = 0.0;
    if (!smp_parse_double(text, &value) || !(value * SMP__WHOLE >= 1.0) ||
        !(value * SMP__WHOLE <= SMP__WHOLE - 1.0))
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a share above 0 and below 1", name,
                        text);
    ((smp__run_options *)options)->train.held_out = (int64_t)(value * SMP__WHOLE + 0.5);
    return SMP_OK;
}

static smp_status set_resume(void *options, const char *name, const char *text)
{
    smp_train_options *train = &((smp__run_options *)options)->train;
    if (text && strcmp(text, "auto") != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected auto or nothing", name, text);
    train->resume = true;
    train->resume_auto = text != NULL;
    return SMP_OK;
}

static void put_sources(smp_text *text)
{
    for (const smp_source_kind *const *k = smp__source_kinds(); *k; k++)
        smp_text_append(text, "\n%s", (*k)->form);
}

static void put_optimizers(smp_text *text)
{
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++)
        smp_text_append(text, "\n%s: %s", (*o)->name, (*o)->summary);
}

static void put_schedules(smp_text *text)
{
    for (const smp_lr_schedule *l = smp_lr_schedules(); l->name; l++)
        smp_text_append(text, "\n%s: %s", l->name, l->summary);
}

static void put_devices(smp_text *text)
{
    for (const smp_device *const *d = smp_devices(); *d; d++)
        smp_text_append(text, "\n%s: %s", (*d)->name, (*d)->summary);
}

#define NUMBER(field, option, limit, by_default, what)                                             \
    {.name = option,                                                                               \
     .kind = SMP_OPTION_FLOAT,                                                                     \
     .at = AT(train.job.optimizer.field),                                                          \
     .value = "X",                                                                                 \
     .most = SMP_OPTION_NO_LIMIT,                                                                  \
     .flags = KEPT,                                                                                \
     .help = what " (default " #by_default ")"},
#define FLAG(field, option, what)                                                                  \
    {option, .kind = SMP_OPTION_ONE, .at = AT(train.job.optimizer.field), .flags = KEPT,           \
     .help = what},

static const smp_option rows[] = {
    {"data", .kind = SMP_OPTION_HEADING},
    {"data", .kind = SMP_OPTION_LIST, .at = AT(data), .value = "SOURCE", .names = put_sources,
     .help = "INPUT=FILE once per model input; again for the same INPUT, or a quoted pattern "
             "('x-*.bin'): one file after another. One of these:"},
    {"data-seed", .kind = SMP_OPTION_SEED, .at = AT(train.data_seed), .value = "S",
     .help = "seed of the shuffling (default 1; resumed: that of the checkpoint, as is the "
             "rest of the order)"},
    {"no-shuffle", .kind = SMP_OPTION_NO, .at = AT(train.shuffle), .help = "samples in file order"},
    {"drop-last", .kind = SMP_OPTION_YES, .at = AT(train.drop_last),
     .help = "leave out the last batch of a pass where it is not full"},
    {"eval-data", .kind = SMP_OPTION_LIST, .at = AT(eval_data), .value = "SOURCE",
     .help = "held-out data, all of it evaluated after the last step: the loss, and "
             "accuracies and perplexity if it is a cross_entropy"},
    {"eval-every", .kind = SMP_OPTION_INT64, .at = AT(train.eval_every), .value = "N", .least = 1,
     .help = "... and after every N steps"},
    {"eval-split", .kind = SMP_OPTION_OWN, .value = "X", .set = set_share,
     .help = "hold out the share X (0 < X < 1) of --data instead, chosen by the data seed: "
             "never trained on"},
    {"training", .kind = SMP_OPTION_HEADING},
    {"steps", .kind = SMP_OPTION_INT64, .at = AT(train.steps), .value = "S",
     .help = "train up to step S (default 100); 0: no step, and no --data needed"},
    {"epochs", .kind = SMP_OPTION_INT64, .at = AT(train.epochs), .value = "N", .least = 1,
     .help = "... or up to the end of the N-th pass over the data"},
    {"optimizer", .kind = SMP_OPTION_TEXT, .at = AT(train.job.optimizer.name), .value = "NAME",
     .names = put_optimizers, .flags = KEPT, .help = "one of these, the first by default:"},
    {"lr", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.lr), .value = "X",
     .most = SMP_OPTION_NO_LIMIT, .flags = KEPT, .help = "peak learning rate (default 1e-3)"},
    {"warmup", .kind = SMP_OPTION_INT64, .at = AT(train.job.optimizer.warmup_steps), .value = "N",
     .flags = KEPT, .help = "linear warm-up over N steps (default 0)"},
    {"lr-schedule", .kind = SMP_OPTION_TEXT, .at = AT(train.job.optimizer.lr_schedule),
     .value = "NAME", .names = put_schedules, .flags = KEPT,
     .help = "one of these after the warm-up; cosine by default with --decay-steps, else "
             "constant:"},
    {"decay-steps", .kind = SMP_OPTION_INT64, .at = AT(train.job.optimizer.decay_steps),
     .value = "N", .flags = KEPT,
     .help = "decay to --min-lr at step N, which is after the warm-up (default 0: none)"},
    {"decay-every", .kind = SMP_OPTION_INT64, .at = AT(train.job.optimizer.decay_every),
     .value = "N", .least = 1, .flags = KEPT,
     .help = "of step and exponential: how often the rate falls"},
    {"gamma", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.gamma), .value = "X",
     .most = SMP_OPTION_NO_LIMIT, .flags = KEPT, .help = "... to how much of it (default 0.1)"},
    {"min-lr", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.min_lr), .value = "X",
     .most = SMP_OPTION_NO_LIMIT, .flags = KEPT, .help = "(default 0)"},
    {"weight-decay", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.weight_decay),
     .value = "X", .most = SMP_OPTION_NO_LIMIT, .flags = KEPT,
     .help = "decoupled, on matrices (default 0.1)"},
    SMP_UPDATE_SETTINGS(NUMBER, FLAG) /* beta1 to trust-coefficient */
    {"weights-like", .kind = SMP_OPTION_LIST, .at = AT(weights_like),
     .value = "PATTERN:KEY=VALUE,...", .flags = KEPT,
     .help = "settings of the weights so named, as in 'h*.ln*:weight-decay=0,lr=0.1': lr "
             "(times the step's), weight-decay, momentum, beta1, beta2, epsilon, "
             "trust-coefficient; repeatable, later ones win"},
    {"clip", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.clip_norm), .value = "X",
     .most = SMP_OPTION_NO_LIMIT, .flags = KEPT,
     .help = "global gradient norm limit, 0: none (default 1)"},
    {"max-skipped", .kind = SMP_OPTION_INT, .at = AT(train.job.runtime.max_skipped), .value = "N",
     .flags = KEPT,
     .help = "end the job after N steps in a row whose loss or gradient was not finite, or "
             "that had no target: they change nothing (default 10, 0: never)"},
    {"loss-scale", .kind = SMP_OPTION_TEXT, .at = AT(train.job.optimizer.loss_scale),
     .value = "auto|X|off", .flags = KEPT,
     .help = "gradients are computed X times as large; auto: as large as they do not "
             "overflow (default: auto in fp16, else off), by these rules:"},
    {"loss-scale-init", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.loss_scale_init),
     .value = "X", .most = SMP_OPTION_NO_LIMIT, .flags = KEPT,
     .help = "at first (default 65536; resumed: that of the checkpoint)"},
    {"scale-window", .kind = SMP_OPTION_INT64, .at = AT(train.job.optimizer.scale_window),
     .value = "N", .least = 1, .flags = KEPT,
     .help = "doubled after N steps in a row without an overflow (default 1000)"},
    {"delayed-shift", .kind = SMP_OPTION_INT, .at = AT(train.job.optimizer.delayed_shift),
     .value = "N", .flags = KEPT,
     .help = "halved by the N-th overflow and those after it, until it is doubled; a step "
             "that overflows is skipped (default 2)"},
    {"min-scale", .kind = SMP_OPTION_FLOAT, .at = AT(train.job.optimizer.min_scale), .value = "X",
     .most = SMP_OPTION_NO_LIMIT, .flags = KEPT,
     .help = "not below X (default 1), where such steps count for --max-skipped"},
    {"seed", .kind = SMP_OPTION_SEED, .at = AT(train.job.runtime.seed), .value = "S", .flags = KEPT,
     .help = "weights and dropout (default 1)"},
    {"given weights", .kind = SMP_OPTION_HEADING},
    {"weights", .kind = SMP_OPTION_TEXT, .at = AT(train.given), .value = "FILE|DIR",
     .help = "begin with the weights of FILE: .safetensors, an index.json of several, or "
             "llm.c's .bin of GPT-2; or of a Hugging Face folder"},
    {"weights-only", .kind = SMP_OPTION_LIST, .at = AT(weights_only), .value = "PATTERN",
     .help = "... with those of such names alone ('h*.attn.*'); repeatable"},
    {"weights-map", .kind = SMP_OPTION_TEXT, .at = AT(weights_map), .value = "FILE",
     .help = "rules of what weights are called in files, and how they lie there; also for "
             "--export-weights"},
    {"names", .kind = SMP_OPTION_TEXT, .at = AT(names), .value = "NAME",
     .names = smp_name_families_put,
     .help = "the same for networks as Hugging Face has them, one of these:"},
    {"checkpoints", .kind = SMP_OPTION_HEADING},
    {"checkpoint", .kind = SMP_OPTION_TEXT, .at = AT(train.checkpoint), .value = "DIR",
     .help = "save after the last step; independent of the plan"},
    {"save-every", .kind = SMP_OPTION_OWN, .value = "N", .set = set_period,
     .help = "... and after every N steps, written while training goes on; a time (90s, 10m, "
             "1.5h) goes by the clock of rank 0"},
    {"save-must", .kind = SMP_OPTION_YES, .at = AT(train.save_must),
     .help = "end the job when a save fails; without it training goes on, every step line "
             "says so, and the exit code is 1 if the last save failed"},
    {"resume", .kind = SMP_OPTION_OWN, .value = "auto", .set = set_resume, .may_miss = true,
     .help = "continue from what was saved last in DIR; if that is damaged, from the one "
             "before, and say so. Options of training and --seed that are not given are "
             "those of the run that is resumed. auto: or begin where nothing is saved: one "
             "command line to requeue"},
    {"resume-changed", .kind = SMP_OPTION_YES, .at = AT(train.resume_changed),
     .help = "... also with another global batch"},
    {"keep", .kind = SMP_OPTION_INT, .at = AT(train.job.runtime.keep_checkpoints), .value = "N",
     .help = "checkpoints that stay, the last ones (default 2)"},
    {"keep-every", .kind = SMP_OPTION_INT64, .at = AT(train.job.runtime.keep_every), .value = "K",
     .least = 1,
     .help = "after every K steps keep the state in memory that outlives the processes, beside "
             "training; --resume takes it where nothing was saved since. Of several machines each "
             "keeps what its ranks have, and a copy of what only the one before has"},
    {"keep-in", .kind = SMP_OPTION_TEXT, .at = AT(train.job.runtime.keep_in), .value = "DIR",
     .help = "... in DIR, on tmpfs, three times what a checkpoint takes (default: a folder of "
             "/dev/shm, named by the user and --checkpoint); removed when a run ends that has "
             "saved its last step"},
    {"keep-best", .kind = SMP_OPTION_YES, .at = AT(train.keep_best),
     .help = "save what evaluates to the lowest loss so far, too, and keep it beside those"},
    {"resume-best", .kind = SMP_OPTION_YES, .at = AT(train.resume_best),
     .help = "continue from that one"},
    {"check-replicas", .kind = SMP_OPTION_INT64, .at = AT(train.check_replicas), .value = "N",
     .help = "compare weights and states of replicas after every N steps, beside before each "
             "save and at the end (default 1000; 0: only there); where they differ, do as "
             "--on-drift says"},
    {"on-drift", .kind = SMP_OPTION_TEXT, .at = AT(train.on_drift), .value = "stop|replay",
     .help = "stop (default), or replay: compute again from what was saved last, say which "
             "replica was wrong, and go on"},
    {"output", .kind = SMP_OPTION_HEADING},
    {"log-every", .kind = SMP_OPTION_INT64, .at = AT(train.log_every), .value = "N", .least = 1,
     .help = "print every N-th step (default 10)"},
    {"json", .kind = SMP_OPTION_YES, .at = AT(train.json),
     .help = "one JSON object per step and line"},
    {"trace", .kind = SMP_OPTION_TEXT, .at = AT(train.trace), .value = "FILE.json",
     .help = "Chrome trace of the last step, predicted and measured (Perfetto)"},
    {"report", .kind = SMP_OPTION_TEXT, .at = AT(train.report), .value = "FILE.html",
     .help = "a page with the last step, predicted above measured, with curves of all steps, "
             "and where their time went"},
    {"events", .kind = SMP_OPTION_FILE, .at = AT(train.events), .value = "FILE.jsonl",
     .help = "of smp-run --elastic, which gives it to its ranks: the page of --report shows the "
             "job's life, too"},
    {"log", .kind = SMP_OPTION_TEXT, .at = AT(train.log), .value = "FILE.csv",
     .help = "a row for each step, written at once; any other name is a folder for "
             "TensorBoard. With --resume it goes on after the step resumed from"},
    {"progress", .kind = SMP_OPTION_TEXT, .at = AT(train.progress), .value = "auto|yes|no",
     .help = "a bar on standard error (default auto: on a terminal, without --json)"},
    {"profile-out", .kind = SMP_OPTION_TEXT, .at = AT(train.profile), .value = "FILE",
     .help = "a profile of what this run measured, for smp-partition --profile"},
    {"export-weights", .kind = SMP_OPTION_TEXT, .at = AT(train.weights),
     .value = "FILE.safetensors|DIR/",
     .help = "write all weights to one file after the last step, or to several in DIR and "
             "their index, beside config.json and tokenizer of a Hugging Face folder that "
             "--weights and --names read; those of a checkpoint with --checkpoint DIR --resume "
             "--steps 0"},
    {"export-size", .kind = SMP_OPTION_TEXT, .at = AT(export_size), .value = "BYTES",
     .help = "of those in DIR (default 5GB)"},
    {"predict", .kind = SMP_OPTION_TEXT, .at = AT(train.predict), .value = "FILE.npy",
     .help = "after the last step, a tensor of the model for all samples in file order; with "
             "--resume --steps 0 or a model in mode: inference"},
    {"tensor", .kind = SMP_OPTION_TEXT, .at = AT(train.predict_tensor), .value = "NAME",
     .help = "of the operator that makes it, or its own (default: what the loss reads first, "
             "else what the last operator makes)"},
    {"predict-data", .kind = SMP_OPTION_LIST, .at = AT(predict_data), .value = "SOURCE",
     .help = "these samples (default: those of --eval-data, else of --data)"},
    {"predict-reduce", .kind = SMP_OPTION_TEXT, .at = AT(train.predict_reduce), .value = "F",
     .help = "concat, stack (micro-batches in a dimension of their own) or mean over "
             "micro-batches (default concat)"},
    {"checksum", .kind = SMP_OPTION_YES, .at = AT(train.checksum),
     .help = "print a hash of each replica's weights at the end"},
    {"job", .kind = SMP_OPTION_HEADING},
    {"timeout", .kind = SMP_OPTION_SECONDS, .at = AT(train.job.runtime.timeout_s), .value = "S",
     .help = "end the job if a rank waits in a step for S seconds (or 2m, 1h) without "
             "progress (default 120, 0: never)"},
    {"timeout-start", .kind = SMP_OPTION_SECONDS, .at = AT(train.job.runtime.timeout_start_s),
     .value = "S",
     .help = "... until all are in the first step (default 10m, or 30 times --timeout where "
             "that is less); bytes read and operators prepared by any rank are progress"},
    {"timeout-save", .kind = SMP_OPTION_SECONDS, .at = AT(train.job.runtime.timeout_save_s),
     .value = "S", .help = "... between steps and at the end, likewise"},
    {"device", .kind = SMP_OPTION_TEXT, .at = AT(train.job.runtime.device), .value = "NAME",
     .names = put_devices,
     .help = "one of these (default cpu), or auto: the first that every rank has; ranks of a "
             "machine take the GPUs that they see in turn:"},
    {"share-gpus", .kind = SMP_OPTION_ONE, .at = AT(train.job.runtime.share_gpus),
     .help = "ranks may share a GPU, where a machine has more ranks than GPUs"},
    {"precision", .kind = SMP_OPTION_TEXT, .at = AT(train.job.runtime.precision), .value = "NAME",
     .help = "fp32, tf32, bf16, fp16 or fp8 (default: the plan's); the CPU has no tf32, has "
             "bf16 and fp8 with AVX512-BF16 or AMX, and multiplies fp16 in fp32; a GPU has "
             "fp8 from compute capability 8.9 on"},
    {"offload-to", .kind = SMP_OPTION_TEXT, .at = AT(train.job.runtime.offload_to), .value = "DIR",
     .help = "keep what the plan offloads in a file there, without a name, instead of in "
             "memory of the host; not on GPUs"},
    {"plugin", .kind = SMP_OPTION_LIST, .at = AT(plugins), .value = "FILE.so",
     .help = "operators of your own that the model uses (smp_op_register); repeatable"},
    {"elastic", .kind = SMP_OPTION_YES, .at = AT(elastic),
     .help = "without mpirun, with a model in place of a plan: plans, starts the ranks, and goes "
             "on when some of them die or devices come and go; smp-run --elastic --help"},
    {"rows", .kind = SMP_OPTION_FILE, .at = AT(train.rows), .value = "FILE",
     .help = "for --elastic: rank 0 appends what it prints to FILE, with the bits of each step's "
             "loss, and ranks end with their mpirun"},
    {0},
};
enum { NOT_GIVEN = -1 }; /* steps */

static void tell_option(void *options, const smp_option *row, const char *text);

const smp_option_table smp__run_table = {
    .program = "smp-run",
    .summary = "train the model of a plan, one process per device",
    .operand = "smp-run PLAN --data SOURCE",
    .argument = "plan",
    .usage = "mpirun -n N smp-run PLAN --data SOURCE [options]\n"
             "smp-run --elastic MODEL -n MIN:MAX --checkpoint DIR --data SOURCE [options]",
    .about = "Trains the model of a plan, one process per device. N is the plan's number "
             "of devices.",
    .exits =
        "With --checkpoint, SIGUSR1 and SIGTERM save after the step in progress and end the "
        "job.\n\n"
        "exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no plan fits, 4 ended by a "
        "signal and saved",
    .row = rows,
    .told = tell_option,
};

/* For the receipt of the run. */
static void tell_option(void *options, const smp_option *row, const char *text)
{
    smp__run_options *a = options;
    if (row->flags & KEPT)
        smp_text_append(&a->told, "option %s %s\n", row->name, text ? text : "");
    a->train.told = a->told.data;
}

/* What lines of a receipt say of an option, in their order. */
typedef struct told_values {
    const char *at[SMP_OPTION_LIST_MOST]; /* up to the end of the line */
    int n;
} told_values;

static told_values values_told(const char *receipt, const smp_option *row)
{
    char word[80];
    size_t length = 0;
    told_values found = {.n = 0};
    snprintf(word, sizeof word, "option %s", row->name);
    for (const char *at = receipt; (at = smp__receipt_value(at, word, &length)); at += length)
        if (found.n < SMP_OPTION_LIST_MOST)
            found.at[found.n++] = at;
    return found;
}

static smp_status copy_value(smp__run_options *a, const char *at, const char **out)
{
    *out = smp_arena_printf(a->arena, "%.*s", (int)strcspn(at, "\n"), at);
    return *out ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* Do the two say the same? Numbers may be written in several ways. */
static smp_status compare_values(smp__run_options *a, const told_values *one,
                                 const told_values *other, bool *same)
{
    *same = one->n == other->n;
    for (int i = 0; i < one->n && *same; i++) {
        const char *x, *y;
        double x_value, y_value;
        SMP_TRY(copy_value(a, one->at[i], &x));
        SMP_TRY(copy_value(a, other->at[i], &y));
        *same = strcmp(x, y) == 0 || (smp_parse_double(x, &x_value) &&
                                      smp_parse_double(y, &y_value) && x_value == y_value);
    }
    return SMP_OK;
}

static void append_values(smp_text *text, const told_values *values)
{
    for (int i = 0; i < values->n; i++)
        smp_text_append(text, "%s%.*s", i > 0 ? " and " : "", (int)strcspn(values->at[i], "\n"),
                        values->at[i]);
    if (values->n == 0)
        smp_text_append(text, "the default");
}

static smp_status settle_option(smp__run_options *a, const smp_option *row, const char *receipt,
                                smp_text *changed)
{
    /* Only the last of what is told counts, unless it may be repeated. */
    const told_values had = values_told(receipt, row);
    told_values given = values_told(a->told.data, row);
    bool same = true;
    if (given.n > 0 && row->kind != SMP_OPTION_LIST)
        given = (told_values){.at = {given.at[given.n - 1]}, .n = 1};
    if (given.n > 0)
        SMP_TRY(compare_values(a, &given, &had, &same));
    if (!same) {
        smp_text_append(changed, "--%s ", row->name);
        append_values(changed, &given);
        smp_text_append(changed, ", the run that is resumed had ");
        append_values(changed, &had);
        smp_text_append(changed, "\n");
    }
    for (int i = 0; i < had.n && given.n == 0; i++) {
        const char *value, *name = smp_arena_printf(a->arena, "--%s", row->name);
        if (!name)
            return SMP_ERR_NO_MEMORY;
        SMP_TRY(copy_value(a, had.at[i], &value));
        SMP_TRY(smp_options_set(row, name, value, a));
        tell_option(a, row, value);
    }
    return SMP_OK;
}

smp_status smp__run_options_settle(smp__run_options *a, const char *receipt, smp_text *changed)
{
    if (!a->arena && !(a->arena = smp_arena_create()))
        return SMP_ERR_NO_MEMORY;
    for (const smp_option *row = rows; row->name; row++)
        if (row->flags & KEPT)
            SMP_TRY(settle_option(a, row, receipt, changed));
    a->train.job.optimizer.n_weights_like = a->weights_like.n;
    return SMP_OK;
}

void smp__run_options_free(smp__run_options *a)
{
    smp_text_free(&a->told);
    smp_arena_destroy(a->arena);
    smp_options_close(a);
}

/* What belongs to weights that come in or go out. */
static smp_status read_weights(smp__run_options *a)
{
    smp_weights_options *from = &a->train.weights_from, *as = &a->train.weights_as;
    *from = (smp_weights_options){.names = a->names,
                                  .map = a->weights_map,
                                  .only = a->weights_only.item,
                                  .n_only = a->weights_only.n};
    *as = (smp_weights_options){.names = a->names, .map = a->weights_map};
    if (a->train.given && a->train.resume)
        return smp_fail(SMP_ERR_INPUT, "--weights with --resume: the checkpoint has the weights");
    if (a->weights_only.n > 0 && !a->train.given)
        return smp_fail(SMP_ERR_INPUT, "--weights-only needs --weights FILE");
    if ((a->names || a->weights_map) && !a->train.given && !a->train.weights)
        return smp_fail(SMP_ERR_INPUT, "--names and --weights-map need --weights FILE or "
                                       "--export-weights FILE");
    if (a->export_size && !a->train.weights)
        return smp_fail(SMP_ERR_INPUT, "--export-size needs --export-weights DIR/");
    if (a->export_size && (!smp_parse_bytes(a->export_size, &as->file_bytes) || as->file_bytes < 1))
        return smp_fail(SMP_ERR_INPUT, "--export-size: got '%s', expected a size such as 5GB",
                        a->export_size);
    return SMP_OK;
}

static smp_status check_choice(const char *option, const char *got, const char *const *names, int n)
{
    for (int i = 0; got && i < n; i++)
        if (strcmp(got, names[i]) == 0)
            return SMP_OK;
    return got ? smp_fail_choice((smp_where){0}, option, got, names, n) : SMP_OK;
}

static smp_status check_words(const smp_train_options *t)
{
    static const char *const progress[] = {"auto", "yes", "no"}, *const drift[] = {"stop",
                                                                                   "replay"};
    SMP_TRY(check_choice("--progress", t->progress, progress, 3));
    SMP_TRY(check_choice("--on-drift", t->on_drift, drift, 2));
    if (t->on_drift && strcmp(t->on_drift, "replay") == 0 && !t->checkpoint)
        return smp_fail(SMP_ERR_INPUT, "--on-drift replay needs --checkpoint DIR");
    if (t->events && !t->report)
        return smp_fail(SMP_ERR_INPUT, "--events: is drawn by --report FILE.html; smp-run "
                                       "--elastic writes it");
    return SMP_OK;
}

/* Where states are kept, if a step is to be trained. */
static smp_status settle_keep(smp__run_options *a)
{
    smp_runtime_options *o = &a->train.job.runtime;
    char path[SMP__CHECKPOINT_PATH_BYTES];
    if (o->keep_in && o->keep_every == 0)
        return smp_fail(SMP_ERR_INPUT, "--keep-in needs --keep-every K");
    if (o->keep_every > 0 && !a->train.checkpoint)
        return smp_fail(SMP_ERR_INPUT, "--keep-every needs --checkpoint DIR");
    if (a->train.steps == 0 && a->train.epochs == 0)
        o->keep_every = 0;
    if (o->keep_every == 0 || o->keep_in)
        return o->keep_every == 0 ? SMP_OK : smp__kept_spares(o->keep_in, a->train.checkpoint);
    SMP_TRY(smp__kept_default(a->train.checkpoint, path));
    if (!a->arena && !(a->arena = smp_arena_create()))
        return SMP_ERR_NO_MEMORY;
    o->keep_in = smp_arena_strdup(a->arena, path);
    return o->keep_in ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* No file that is read is written, too. Data: FILE or NAME=FILE. */
static smp_status check_files(const smp__run_options *a)
{
    const smp_train_options *t = &a->train;
    const char *const written[] = {t->trace, t->report, t->profile, t->predict, t->weights, t->log};
    const smp_option_list *const lists[] = {&a->data, &a->eval_data, &a->predict_data, &a->plugins};
    for (size_t k = 0; k < sizeof written / sizeof written[0]; k++) {
        SMP_TRY(smp_file_spares(written[k], t->job.plan));
        SMP_TRY(smp_file_spares(written[k], a->common.config));
        SMP_TRY(smp_file_spares(written[k], t->given));
        SMP_TRY(smp_file_spares(written[k], t->events));
        SMP_TRY(smp_file_spares(written[k], a->weights_map));
        for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++)
            for (int i = 0; i < lists[l]->n; i++) {
                const char *file = strchr(lists[l]->item[i], '=');
                SMP_TRY(smp_file_spares(written[k], file ? file + 1 : lists[l]->item[i]));
            }
    }
    return SMP_OK;
}

void smp__run_options_begin(smp__run_options *a)
{
    a->train = (smp_train_options){.job = smp_options_default(),
                                   .steps = NOT_GIVEN,
                                   .log_every = 10,
                                   .check_replicas = 1000,
                                   .data_seed = SMP__SEED_DEFAULT,
                                   .shuffle = true};
}

smp_status smp__run_options_read(int argc, char **argv, smp__run_options *a)
{
    smp__run_options_begin(a);
    SMP_TRY(smp_options_read(&smp__run_table, argc, argv, 1, a));
    if (a->common.help || a->common.version)
        return SMP_OK;
    if (a->elastic)
        return smp_fail(SMP_ERR_INPUT, "--elastic: expected on the command line, in full");
    return smp__run_options_check(a);
}

smp_status smp__run_options_check(smp__run_options *a)
{
    a->train.job.plan = a->common.operand;
    a->train.data = a->data.item;
    a->train.n_data = a->data.n;
    a->train.eval_data = a->eval_data.item;
    a->train.n_eval_data = a->eval_data.n;
    const smp_option_list *predicted = a->predict_data.n > 0 ? &a->predict_data
                                       : a->eval_data.n > 0  ? &a->eval_data
                                                             : &a->data;
    a->train.predict_data = predicted->item;
    a->train.n_predict_data = predicted->n;
    a->train.job.runtime.plugins = a->plugins.item;
    a->train.job.runtime.n_plugins = a->plugins.n;
    a->train.job.optimizer.weights_like = a->weights_like.item;
    a->train.job.optimizer.n_weights_like = a->weights_like.n;
    a->train.job.runtime.record_trace = a->train.trace || a->train.report || a->train.log;
    a->train.job.runtime.record_costs = a->train.profile != NULL;
    SMP_TRY(check_words(&a->train));
    if (a->train.epochs > 0 && a->train.steps != NOT_GIVEN)
        return smp_fail(SMP_ERR_INPUT, "--epochs and --steps: give one of them");
    if (a->train.steps == NOT_GIVEN)
        a->train.steps = a->train.epochs > 0 ? 0 : 100;
    if (a->train.n_data == 0 && (a->train.steps > 0 || a->train.epochs > 0))
        return smp_fail(SMP_ERR_INPUT,
                        "no --data: name a file to train on; --help lists the kinds");
    if ((a->train.resume || a->train.save_every > 0 || a->train.save_every_s > 0.0 ||
         a->train.save_must) &&
        !a->train.checkpoint)
        return smp_fail(SMP_ERR_INPUT,
                        "--resume, --save-every and --save-must need --checkpoint DIR");
    if ((a->train.keep_best || a->train.resume_best) && !a->train.checkpoint)
        return smp_fail(SMP_ERR_INPUT, "--keep-best and --resume-best need --checkpoint DIR");
    a->train.resume = a->train.resume || a->train.resume_best;
    if (a->train.resume_changed && !a->train.resume)
        return smp_fail(SMP_ERR_INPUT, "--resume-changed needs --resume");
    if (a->train.keep_best && a->train.n_eval_data == 0 && a->train.held_out == 0 &&
        !a->train.resume)
        return smp_fail(SMP_ERR_INPUT, "--keep-best needs --eval-data SOURCE or --eval-split X");
    if (a->train.held_out > 0 && a->train.n_eval_data > 0)
        return smp_fail(SMP_ERR_INPUT, "--eval-split and --eval-data: give one of them");
    if (a->train.held_out > 0 && a->train.n_data == 0)
        return smp_fail(SMP_ERR_INPUT, "--eval-split needs --data SOURCE: it is a part of that");
    if (a->train.eval_every > 0 && a->train.n_eval_data == 0 && a->train.held_out == 0 &&
        !a->train.resume)
        return smp_fail(SMP_ERR_INPUT, "--eval-every needs --eval-data SOURCE or --eval-split X");
    if (!a->train.predict &&
        (a->train.predict_tensor || a->train.predict_reduce || a->predict_data.n > 0))
        return smp_fail(SMP_ERR_INPUT,
                        "--tensor, --predict-reduce and --predict-data need --predict FILE.npy");
    SMP_TRY(read_weights(a));
    SMP_TRY(settle_keep(a));
    return check_files(a);
}
