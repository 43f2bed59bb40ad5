/* The options of smp-run: tools/run/run_options.h. */
#include "tools/run/run_options.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "exec/data/data_source.h"
#include "exec/device/device.h"
#include "exec/optimizer/lr_schedule.h"
#include "exec/checkpoint/checkpoint_file.h"
#include "graph/base/text.h"
#include "graph/base/usage.h"
#include "graph/safetensors/name_family.h"

/* How a value is read, and what it is stored as. */
typedef enum value_kind {
    YES,      /* none: bool true */
    NO,       /* none: bool false */
    FLAG,     /* none: int 1 */
    TEXT,     /* const char * */
    SOURCE,   /* may be repeated: smp__source_list */
    COUNT,    /* int64_t from 0 */
    FEW,      /* int from 0 */
    POSITIVE, /* int64_t from 1 */
    SEED,     /* uint64_t */
    NUMBER,   /* float from 0 */
    SECONDS,  /* from 0, or a time: double */
    PERIOD,   /* steps, or a time: smp_train_options.save_every and save_every_s */
    SHARE,    /* above 0, below 1: int64_t in parts of SMP__WHOLE */
    RESUME    /* none, or auto: smp_train_options */
} value_kind;

/* Of the run, not of the job: who resumes it goes on with it, unless told otherwise. */
enum { KEPT = true };

#define AT(field) offsetof(smp__run_options, field)

static const struct entry {
    const char *name;
    value_kind kind;
    size_t at;
    bool kept;
} entries[] = {
    {"data", SOURCE, AT(data)},
    {"data-seed", SEED, AT(train.data_seed)},
    {"no-shuffle", NO, AT(train.shuffle)},
    {"drop-last", YES, AT(train.drop_last)},
    {"eval-data", SOURCE, AT(eval_data)},
    {"eval-every", POSITIVE, AT(train.eval_every)},
    {"eval-split", SHARE, AT(train.held_out)},
    {"epochs", POSITIVE, AT(train.epochs)},
    {"steps", COUNT, AT(train.steps)},
    {"optimizer", TEXT, AT(train.job.optimizer), KEPT},
    {"lr", NUMBER, AT(train.job.lr), KEPT},
    {"min-lr", NUMBER, AT(train.job.min_lr), KEPT},
    {"warmup", COUNT, AT(train.job.warmup_steps), KEPT},
    {"decay-steps", COUNT, AT(train.job.decay_steps), KEPT},
    {"weight-decay", NUMBER, AT(train.job.weight_decay), KEPT},
    {"beta1", NUMBER, AT(train.job.beta1), KEPT},
    {"beta2", NUMBER, AT(train.job.beta2), KEPT},
    {"epsilon", NUMBER, AT(train.job.epsilon), KEPT},
    {"momentum", NUMBER, AT(train.job.momentum), KEPT},
    {"nesterov", FLAG, AT(train.job.nesterov), KEPT},
    {"trust-coefficient", NUMBER, AT(train.job.trust_coefficient), KEPT},
    {"lr-schedule", TEXT, AT(train.job.lr_schedule), KEPT},
    {"decay-every", POSITIVE, AT(train.job.decay_every), KEPT},
    {"gamma", NUMBER, AT(train.job.gamma), KEPT},
    {"weights-like", SOURCE, AT(weights_like), KEPT},
    {"clip", NUMBER, AT(train.job.clip_norm), KEPT},
    {"max-skipped", FEW, AT(train.job.max_skipped), KEPT},
    {"loss-scale", TEXT, AT(train.job.loss_scale), KEPT},
    {"loss-scale-init", NUMBER, AT(train.job.loss_scale_init), KEPT},
    {"scale-window", POSITIVE, AT(train.job.scale_window), KEPT},
    {"min-scale", NUMBER, AT(train.job.min_scale), KEPT},
    {"delayed-shift", FEW, AT(train.job.delayed_shift), KEPT},
    {"seed", SEED, AT(train.job.seed), KEPT},
    {"checkpoint", TEXT, AT(train.checkpoint)},
    {"save-every", PERIOD, AT(train)},
    {"save-must", YES, AT(train.save_must)},
    {"check-replicas", COUNT, AT(train.check_replicas)},
    {"on-drift", TEXT, AT(train.on_drift)},
    {"resume", RESUME, AT(train)},
    {"resume-changed", YES, AT(train.resume_changed)},
    {"keep", FEW, AT(train.job.keep_checkpoints)},
    {"keep-best", YES, AT(train.keep_best)},
    {"resume-best", YES, AT(train.resume_best)},
    {"log-every", POSITIVE, AT(train.log_every)},
    {"json", YES, AT(train.json)},
    {"trace", TEXT, AT(train.trace)},
    {"report", TEXT, AT(train.report)},
    {"profile-out", TEXT, AT(train.profile)},
    {"weights", TEXT, AT(train.given)},
    {"weights-only", SOURCE, AT(weights_only)},
    {"weights-map", TEXT, AT(weights_map)},
    {"names", TEXT, AT(names)},
    {"export-weights", TEXT, AT(train.weights)},
    {"predict", TEXT, AT(train.predict)},
    {"tensor", TEXT, AT(train.predict_tensor)},
    {"predict-reduce", TEXT, AT(train.predict_reduce)},
    {"predict-data", SOURCE, AT(predict_data)},
    {"export-size", TEXT, AT(export_size)},
    {"log", TEXT, AT(train.log)},
    {"progress", TEXT, AT(train.progress)},
    {"checksum", YES, AT(train.checksum)},
    {"timeout", SECONDS, AT(train.job.timeout_s)},
    {"timeout-start", SECONDS, AT(train.job.timeout_start_s)},
    {"timeout-save", SECONDS, AT(train.job.timeout_save_s)},
    {"device", TEXT, AT(train.job.device)},
    {"precision", TEXT, AT(train.job.precision)},
    {"offload-to", TEXT, AT(train.job.offload_to)},
    {"plugin", SOURCE, AT(plugins)},
    {"help", YES, AT(help)},
    {"version", YES, AT(version)},
};
enum { NOT_GIVEN = -1 }; /* steps */
enum { N_ENTRY = sizeof(entries) / sizeof(entries[0]) };

/* The names of registries are filled in: data, optimizers, schedules of the rate, names of weights,
 * devices. */
static const char usage[] =
    "usage: mpirun -n N smp-run PLAN --data SOURCE [options]\n"
    "\n"
    "Trains the model of a plan, one process per device. N is the plan's number of devices.\n"
    "\n"
    "data\n"
    "  --data SOURCE        one of these; INPUT=FILE once per model input:\n"
    "%s"
    "                       again for the same INPUT, or a quoted pattern ('x-*.bin'): one file\n"
    "                       after another\n"
    "  --data-seed S        seed of the shuffling (default 1; resumed: that of the checkpoint, as "
    "is\n"
    "                       the rest of the order)\n"
    "  --no-shuffle         samples in file order\n"
    "  --drop-last          leave out the last batch of a pass where it is not full\n"
    "  --eval-data SOURCE   held-out data, all of it evaluated after the last step: the loss, and\n"
    "                       accuracies and perplexity if it is a cross_entropy\n"
    "  --eval-every N       ... and after every N steps\n"
    "  --eval-split X       hold out the share X (0 < X < 1) of --data instead, chosen by the "
    "data\n"
    "                       seed: never trained on\n"
    "training\n"
    "  --steps S            train up to step S (default 100); 0: no step, and no --data needed\n"
    "  --epochs N           ... or up to the end of the N-th pass over the data\n"
    "  --optimizer NAME     one of these, the first by default:\n"
    "%s"
    "  --lr X               peak learning rate (default 1e-3)\n"
    "  --warmup N           linear warm-up over N steps (default 0)\n"
    "  --lr-schedule NAME   one of these behind the warm-up; cosine by default with\n"
    "                       --decay-steps, else constant:\n"
    "%s"
    "  --decay-steps N      decay to --min-lr at step N, which is after the warm-up\n"
    "                       (default 0: none)\n"
    "  --decay-every N --gamma X    of step and exponential (default gamma 0.1)\n"
    "  --min-lr X           (default 0)\n"
    "  --weight-decay X     decoupled, on matrices (default 0.1)\n"
    "  --beta1 X --beta2 X --epsilon X    adamw, lamb, novograd; lion's betas (default 0.9,\n"
    "                       0.95, 1e-8)\n"
    "  --momentum X         sgd, lars (default 0.9)\n"
    "  --nesterov           sgd: look ahead along the momentum\n"
    "  --trust-coefficient X    lars (default 1e-3)\n"
    "  --weights-like 'PATTERN:KEY=VALUE,...'\n"
    "                       settings of the weights so named, as in "
    "'h*.ln*:weight-decay=0,lr=0.1':\n"
    "                       lr (times the step's), weight-decay, momentum, beta1, beta2, epsilon,\n"
    "                       trust-coefficient; repeatable, later ones win\n"
    "  --clip X             global gradient norm limit, 0: none (default 1)\n"
    "  --max-skipped N      end the job after N steps in a row whose loss or gradient was not "
    "finite,\n"
    "                       or that had no target: they change nothing (default 10, 0: never)\n"
    "  --loss-scale auto|X|off    gradients are computed X times as large; auto: as large as they\n"
    "                       do not overflow (default: auto in fp16, else off), by these rules:\n"
    "  --loss-scale-init X  at first (default 65536; resumed: that of the checkpoint)\n"
    "  --scale-window N     doubled after N steps in a row without an overflow (default 1000)\n"
    "  --delayed-shift N    halved by the N-th overflow and those behind it, until it is doubled;\n"
    "                       a step that overflows is skipped (default 2)\n"
    "  --min-scale X        not below X (default 1), where such steps count for --max-skipped\n"
    "  --seed S             weights and dropout (default 1)\n"
    "given weights\n"
    "  --weights FILE       begin with the weights of FILE: .safetensors, an index.json of "
    "several,\n"
    "                       or llm.c's .bin of GPT-2\n"
    "  --weights-only PATTERN\n"
    "                       ... with those of such names alone ('h*.attn.*'); repeatable\n"
    "  --weights-map FILE   rules of what weights are called in files, and how they lie there;\n"
    "                       also for --export-weights\n"
    "  --names NAME         the same for networks as Hugging Face has them, one of these:\n"
    "%s"
    "checkpoints\n"
    "  --checkpoint DIR     save after the last step; independent of the plan\n"
    "  --save-every N       ... and after every N steps, written while training goes on; a time\n"
    "                       (90s, 10m, 1.5h) goes by the clock of rank 0\n"
    "  --save-must          end the job when a save fails; without it training goes on, every "
    "step\n"
    "                       line says so, and the exit code is 1 if the last save failed\n"
    "  --resume             continue from what was saved last in DIR; if that is damaged,\n"
    "                       from the one before, and say so. Options of training and --seed that\n"
    "                       are not given are those of the run that is resumed\n"
    "  --resume=auto        ... or begin where nothing is saved: one command line to requeue\n"
    "  --resume-changed     ... also with another global batch\n"
    "  --keep N             checkpoints that stay, the last ones (default 2)\n"
    "  --keep-best          save what evaluates to the lowest loss so far, too, and keep it\n"
    "                       beside those\n"
    "  --resume-best        continue from that one\n"
    "  --check-replicas N   compare weights and states of replicas after every N steps, beside\n"
    "                       before each save and at the end (default 1000; 0: only there); where\n"
    "                       they differ, do as --on-drift says\n"
    "  --on-drift WHAT      stop (default), or replay: compute again from what was saved last,\n"
    "                       say which replica was wrong, and go on\n"
    "output\n"
    "  --log-every N        print every N-th step (default 10)\n"
    "  --json               one JSON object per step and line\n"
    "  --trace FILE.json    Chrome trace of the last step, predicted and measured (Perfetto)\n"
    "  --report FILE.html   a page with the last step, predicted above measured, with curves of\n"
    "                       all steps, and where their time went\n"
    "  --log FILE.csv       a row for each step, written at once; any other name is a folder for\n"
    "                       TensorBoard. With --resume it goes on behind the step resumed from\n"
    "  --progress WHEN      a bar on standard error: auto (default: on a terminal, without\n"
    "                       --json), yes or no\n"
    "  --profile-out FILE   a profile of what this run measured, for smp-partition --profile\n"
    "  --export-weights FILE.safetensors\n"
    "                       write all weights to one file after the last step; those of a\n"
    "                       checkpoint with --checkpoint DIR --resume --steps 0\n"
    "  --export-weights DIR/ --export-size BYTES\n"
    "                       ... to files of that size (default 5GB) and their index\n"
    "  --predict FILE.npy   after the last step, a tensor of the model for all samples in file\n"
    "                       order; with --resume --steps 0 or a model in mode: inference\n"
    "  --tensor NAME        of the operator that makes it, or its own (default: what the loss\n"
    "                       reads first, else what the last operator makes)\n"
    "  --predict-data SOURCE    these samples (default: those of --eval-data, else of --data)\n"
    "  --predict-reduce F   concat, stack (micro-batches in a dimension of their own) or mean\n"
    "                       over micro-batches (default concat)\n"
    "  --checksum           print a hash of each replica's weights at the end\n"
    "job\n"
    "  --timeout S          end the job if a rank waits in a step for S seconds (or 2m, 1h)\n"
    "                       without progress (default 120, 0: never)\n"
    "  --timeout-start S    ... until all are in the first step (default 10m, or 30 times\n"
    "                       --timeout where that is less); bytes read and operators prepared\n"
    "                       by any rank are progress\n"
    "  --timeout-save S     ... between steps and at the end, likewise\n"
    "  --device NAME        one of these (default cpu), or auto: the first that every rank has;\n"
    "                       ranks of a machine take its GPUs in turn and may share one\n"
    "%s"
    "  --precision NAME     fp32, tf32, bf16 or fp16 (default: the plan's); the CPU has no tf32,\n"
    "                       bf16 where it has AVX512-BF16 or AMX, and multiplies fp16 in fp32\n"
    "  --offload-to DIR     keep what the plan offloads in a file there, without a name, instead "
    "of in\n"
    "                       memory of the host; not on GPUs\n"
    "  --plugin FILE.so     operators of your own that the model uses (smp_op_register); "
    "repeatable\n"
    "  --help, --version\n"
    "\n"
    "With --checkpoint, SIGUSR1 and SIGTERM save after the step in progress and end the job.\n"
    "exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no plan fits,\n"
    "            4 ended by a signal and saved\n";

static void add_line(smp_text *text, const char *name, const char *summary)
{
    smp_text_append(text, "%*s%-7s %s\n", 25, "", name, summary);
}

void smp__run_options_help(void)
{
    smp_text data = {0}, optimizers = {0}, devices = {0}, schedules = {0}, names = {0};
    for (const smp_source_kind *const *k = smp__source_kinds(); *k; k++)
        smp_text_append(&data, "%*s%s\n", 25, "", (*k)->form);
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++)
        add_line(&optimizers, (*o)->name, (*o)->summary);
    for (const smp_lr_schedule *l = smp_lr_schedules(); l->name; l++)
        add_line(&schedules, l->name, l->summary);
    for (const smp_device *const *d = smp_devices(); *d; d++)
        add_line(&devices, (*d)->name, (*d)->summary);
    for (const smp_name_family *const *f = smp_name_families(); *f; f++)
        smp_text_append(&names, "%*s%-9s %s\n", 25, "", (*f)->name, (*f)->summary);
    if (!data.failed && !optimizers.failed && !devices.failed && !schedules.failed && !names.failed)
        printf(usage, data.data, optimizers.data, schedules.data, names.data, devices.data);
    smp_text_free(&names);
    smp_text_free(&data);
    smp_text_free(&optimizers);
    smp_text_free(&devices);
    smp_text_free(&schedules);
}

static smp_status parse_float(const char *option, const char *text, float *out)
{
    double value;
    if (!smp_parse_double(text, &value) || value < 0.0 || value > 1e30)
        return smp_fail(SMP_ERR_INPUT, "--%s: got '%s', expected a number of 0 or more", option,
                        text);
    *out = (float)value;
    return SMP_OK;
}

static smp_status parse_count(const char *option, const char *text, int64_t min, int64_t *out)
{
    int64_t value = 0;
    if (!smp_parse_int(text, &value) || value < min || value > 1000000000)
        return smp_fail(SMP_ERR_INPUT, "--%s: got '%s', expected a whole number from %lld to 1e9",
                        option, text, (long long)min);
    *out = value;
    return SMP_OK;
}

/* "90s", "10m", "1.5h" in seconds; *unit false: a number without a unit, as it is. */
static bool parse_time(const char *text, double *seconds, bool *unit)
{
    static const struct {
        char letter;
        double seconds;
    } units[] = {{'s', 1.0}, {'m', 60.0}, {'h', 3600.0}};
    const size_t length = strlen(text);
    double each = 0.0;
    char number[32];
    for (size_t i = 0; length > 0 && i < sizeof units / sizeof units[0]; i++)
        each = text[length - 1] == units[i].letter ? units[i].seconds : each;
    *unit = each > 0.0;
    snprintf(number, sizeof number, "%.*s", (int)(length - *unit), text);
    if (length > sizeof number || !smp_parse_double(number, seconds))
        return false;
    *seconds *= *unit ? each : 1.0;
    return *seconds >= 0.0 && *seconds <= 1e9;
}

static smp_status parse_seconds(const char *option, const char *text, double *out)
{
    bool unit;
    if (!parse_time(text, out, &unit))
        return smp_fail(SMP_ERR_INPUT,
                        "--%s: got '%s', expected seconds from 0 to 1e9, or a time such as 10m",
                        option, text);
    return SMP_OK;
}

static smp_status parse_period(const char *option, const char *text, smp_train_options *train)
{
    double seconds = 0.0;
    bool unit;
    const bool is_time = parse_time(text, &seconds, &unit) && unit && seconds > 0.0;
    train->save_every = 0;
    train->save_every_s = is_time ? seconds : 0.0;
    if (!is_time && (!smp_parse_int(text, &train->save_every) || train->save_every < 1 ||
                     train->save_every > 1000000000))
        return smp_fail(SMP_ERR_INPUT,
                        "--%s: got '%s', expected a whole number of steps from 1 to 1e9, or a time "
                        "such as 90s, 10m or 1.5h",
                        option, text);
    return SMP_OK;
}

static smp_status parse_share(const char *option, const char *text, int64_t *out)
{
    double value = 0.0;
    if (!smp_parse_double(text, &value) || !(value * SMP__WHOLE >= 1.0) ||
        !(value * SMP__WHOLE <= SMP__WHOLE - 1.0))
        return smp_fail(SMP_ERR_INPUT, "--%s: got '%s', expected a share above 0 and below 1",
                        option, text);
    *out = (int64_t)(value * SMP__WHOLE + 0.5);
    return SMP_OK;
}

static smp_status add_source(const char *option, const char *text, smp__source_list *list)
{
    if (list->n == SMP__MAX_SOURCES)
        return smp_fail(SMP_ERR_INPUT, "--%s: given more than %d times", option, SMP__MAX_SOURCES);
    list->item[list->n++] = text;
    return SMP_OK;
}

static smp_status set_option(smp__run_options *a, const struct entry *entry, const char *text)
{
    void *at = (char *)a + entry->at;
    int64_t count = 0;
    switch (entry->kind) {
    case YES:
    case NO:
        *(bool *)at = entry->kind == YES;
        return SMP_OK;
    case FLAG:
        *(int *)at = 1;
        return SMP_OK;
    case TEXT:
        *(const char **)at = text;
        return SMP_OK;
    case SOURCE:
        return add_source(entry->name, text, at);
    case COUNT:
    case POSITIVE:
        return parse_count(entry->name, text, entry->kind == POSITIVE, at);
    case FEW:
        SMP_TRY(parse_count(entry->name, text, 0, &count));
        *(int *)at = (int)count;
        return SMP_OK;
    case SEED:
        SMP_TRY(parse_count(entry->name, text, 0, &count));
        *(uint64_t *)at = (uint64_t)count;
        return SMP_OK;
    case NUMBER:
        return parse_float(entry->name, text, at);
    case SECONDS:
        return parse_seconds(entry->name, text, at);
    case PERIOD:
        return parse_period(entry->name, text, at);
    case SHARE:
        return parse_share(entry->name, text, at);
    case RESUME:
        if (text && strcmp(text, "auto") != 0)
            return smp_fail(SMP_ERR_INPUT, "--resume: got '%s', expected auto or nothing", text);
        a->train.resume = true;
        a->train.resume_auto = text != NULL;
        return SMP_OK;
    }
    return SMP_OK;
}

/* For the receipt of the run. */
static void tell_option(smp__run_options *a, const struct entry *entry, const char *text)
{
    if (entry->kept)
        smp_text_append(&a->told, "option %s %s\n", entry->name, text ? text : "");
    a->train.told = a->told.data;
}

/* What lines of a receipt say of an option, in their order. */
typedef struct told_values {
    const char *at[SMP__MAX_SOURCES]; /* up to the end of the line */
    int n;
} told_values;

static told_values values_told(const char *receipt, const char *name)
{
    const size_t length = strlen(name);
    told_values found = {.n = 0};
    for (const char *at = receipt, *end; at && (end = strchr(at, '\n')); at = end + 1)
        if (strncmp(at, "option ", 7) == 0 && strncmp(at + 7, name, length) == 0 &&
            at[7 + length] == ' ' && found.n < SMP__MAX_SOURCES)
            found.at[found.n++] = at + 8 + length;
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

static smp_status settle_option(smp__run_options *a, const struct entry *entry, const char *receipt,
                                smp_text *changed)
{
    /* Of what is told only the last counts, but of what may be repeated. */
    const told_values had = values_told(receipt, entry->name);
    told_values given = values_told(a->told.data, entry->name);
    bool same = true;
    if (given.n > 0 && entry->kind != SOURCE)
        given = (told_values){.at = {given.at[given.n - 1]}, .n = 1};
    if (given.n > 0)
        SMP_TRY(compare_values(a, &given, &had, &same));
    if (!same) {
        smp_text_append(changed, "--%s ", entry->name);
        append_values(changed, &given);
        smp_text_append(changed, ", the run that is resumed had ");
        append_values(changed, &had);
        smp_text_append(changed, "\n");
    }
    for (int i = 0; i < had.n && given.n == 0; i++) {
        const char *value;
        SMP_TRY(copy_value(a, had.at[i], &value));
        SMP_TRY(set_option(a, entry, value));
        tell_option(a, entry, value);
    }
    return SMP_OK;
}

smp_status smp__run_options_settle(smp__run_options *a, const char *receipt, smp_text *changed)
{
    if (!a->arena && !(a->arena = smp_arena_create()))
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < N_ENTRY; i++)
        if (entries[i].kept)
            SMP_TRY(settle_option(a, &entries[i], receipt, changed));
    a->train.job.n_weights_like = a->weights_like.n;
    return SMP_OK;
}

void smp__run_options_free(smp__run_options *a)
{
    smp_text_free(&a->told);
    smp_arena_destroy(a->arena);
}

static int takes_value(value_kind kind)
{
    return kind == RESUME ? optional_argument : kind > FLAG ? required_argument : no_argument;
}

static smp_status read_options(int argc, char **argv, smp__run_options *a)
{
    enum { FIRST = 256 }; /* values of their own: an abbreviation of two options is none */
    struct option options[N_ENTRY + 1] = {{0}};
    for (int i = 0; i < N_ENTRY; i++)
        options[i] = (struct option){
            .name = entries[i].name, .has_arg = takes_value(entries[i].kind), .val = FIRST + i};
    opterr = 0;
    for (int value; (value = getopt_long(argc, argv, ":", options, NULL)) != -1;) {
        if (value == '?' || value == ':')
            return smp_usage_bad_option(argv[optind - 1], value == ':', options);
        SMP_TRY(set_option(a, &entries[value - FIRST], optarg));
        tell_option(a, &entries[value - FIRST], optarg);
    }
    return SMP_OK;
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
    return SMP_OK;
}

/* No file that is read is written, too. Data: FILE or NAME=FILE. */
static smp_status check_files(const smp__run_options *a)
{
    const smp_train_options *t = &a->train;
    const char *const written[] = {t->trace, t->report, t->profile, t->predict, t->weights, t->log};
    const smp__source_list *const lists[] = {&a->data, &a->eval_data, &a->predict_data,
                                             &a->plugins};
    for (size_t k = 0; k < sizeof written / sizeof written[0]; k++) {
        SMP_TRY(smp_file_spares(written[k], t->job.plan));
        SMP_TRY(smp_file_spares(written[k], t->given));
        SMP_TRY(smp_file_spares(written[k], a->weights_map));
        for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++)
            for (int i = 0; i < lists[l]->n; i++) {
                const char *file = strchr(lists[l]->item[i], '=');
                SMP_TRY(smp_file_spares(written[k], file ? file + 1 : lists[l]->item[i]));
            }
    }
    return SMP_OK;
}

smp_status smp__run_options_read(int argc, char **argv, smp__run_options *a)
{
    a->train = (smp_train_options){.job = smp_options_default(),
                                   .steps = NOT_GIVEN,
                                   .log_every = 10,
                                   .check_replicas = 1000,
                                   .data_seed = SMP__SEED_DEFAULT,
                                   .shuffle = true};
    SMP_TRY(read_options(argc, argv, a));
    if (a->help || a->version)
        return SMP_OK;
    if (argc - optind != 1)
        return smp_fail(SMP_ERR_INPUT, "got %d plans, expected one: smp-run PLAN --data SOURCE",
                        argc - optind);
    a->train.job.plan = argv[optind];
    a->train.data = a->data.item;
    a->train.n_data = a->data.n;
    a->train.eval_data = a->eval_data.item;
    a->train.n_eval_data = a->eval_data.n;
    const smp__source_list *predicted = a->predict_data.n > 0 ? &a->predict_data
                                        : a->eval_data.n > 0  ? &a->eval_data
                                                              : &a->data;
    a->train.predict_data = predicted->item;
    a->train.n_predict_data = predicted->n;
    a->train.job.plugins = a->plugins.item;
    a->train.job.n_plugins = a->plugins.n;
    a->train.job.weights_like = a->weights_like.item;
    a->train.job.n_weights_like = a->weights_like.n;
    a->train.job.record_trace = a->train.trace || a->train.report || a->train.log;
    a->train.job.record_costs = a->train.profile != NULL;
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
    return check_files(a);
}
