/* smp-run: executes a plan. Flags, wiring and exit code. */
#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/data/data_source.h"
#include "exec/device/device.h"
#include "exec/transport/comm.h"
#include "profile/cuda_info.h"
#include "exec/training_loop.h"
#include "graph/base/status.h"
#include "graph/base/text.h"
#include "graph/base/usage.h"
#include "graph/math/math.h"

enum { MAX_SOURCES = 64 };

typedef enum flag {
    FLAG_DATA = 256,
    FLAG_STEPS,
    FLAG_OPTIMIZER,
    FLAG_LR,
    FLAG_MIN_LR,
    FLAG_WARMUP,
    FLAG_DECAY_STEPS,
    FLAG_WEIGHT_DECAY,
    FLAG_BETA1,
    FLAG_BETA2,
    FLAG_EPSILON,
    FLAG_MOMENTUM,
    FLAG_CLIP,
    FLAG_SEED,
    FLAG_DATA_SEED,
    FLAG_NO_SHUFFLE,
    FLAG_CHECKPOINT,
    FLAG_SAVE_EVERY,
    FLAG_RESUME,
    FLAG_TRACE,
    FLAG_REPORT,
    FLAG_JSON,
    FLAG_LOG_EVERY,
    FLAG_TIMEOUT,
    FLAG_CHECKSUM,
    FLAG_EVAL_DATA,
    FLAG_EVAL_EVERY,
    FLAG_DEVICE,
    FLAG_PRECISION,
    FLAG_HELP,
    FLAG_VERSION
} flag;

static const struct option long_options[] = {
    {"data", required_argument, NULL, FLAG_DATA},
    {"steps", required_argument, NULL, FLAG_STEPS},
    {"optimizer", required_argument, NULL, FLAG_OPTIMIZER},
    {"lr", required_argument, NULL, FLAG_LR},
    {"min-lr", required_argument, NULL, FLAG_MIN_LR},
    {"warmup", required_argument, NULL, FLAG_WARMUP},
    {"decay-steps", required_argument, NULL, FLAG_DECAY_STEPS},
    {"weight-decay", required_argument, NULL, FLAG_WEIGHT_DECAY},
    {"beta1", required_argument, NULL, FLAG_BETA1},
    {"beta2", required_argument, NULL, FLAG_BETA2},
    {"epsilon", required_argument, NULL, FLAG_EPSILON},
    {"momentum", required_argument, NULL, FLAG_MOMENTUM},
    {"clip", required_argument, NULL, FLAG_CLIP},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"data-seed", required_argument, NULL, FLAG_DATA_SEED},
    {"no-shuffle", no_argument, NULL, FLAG_NO_SHUFFLE},
    {"checkpoint", required_argument, NULL, FLAG_CHECKPOINT},
    {"save-every", required_argument, NULL, FLAG_SAVE_EVERY},
    {"resume", no_argument, NULL, FLAG_RESUME},
    {"trace", required_argument, NULL, FLAG_TRACE},
    {"report", required_argument, NULL, FLAG_REPORT},
    {"json", no_argument, NULL, FLAG_JSON},
    {"log-every", required_argument, NULL, FLAG_LOG_EVERY},
    {"timeout", required_argument, NULL, FLAG_TIMEOUT},
    {"checksum", no_argument, NULL, FLAG_CHECKSUM},
    {"eval-data", required_argument, NULL, FLAG_EVAL_DATA},
    {"eval-every", required_argument, NULL, FLAG_EVAL_EVERY},
    {"device", required_argument, NULL, FLAG_DEVICE},
    {"precision", required_argument, NULL, FLAG_PRECISION},
    {"help", no_argument, NULL, FLAG_HELP},
    {"version", no_argument, NULL, FLAG_VERSION},
    {NULL, 0, NULL, 0},
};

/* The names of registries are filled in: data, optimizers, devices. */
static const char usage[] =
    "usage: mpirun -n N smp-run PLAN --data SOURCE [options]\n"
    "\n"
    "Trains the model of a plan, one process per device. N is the plan's number of devices.\n"
    "\n"
    "data\n"
    "  --data SOURCE        one of these; INPUT=FILE once per model input:\n"
    "%s"
    "  --data-seed S        seed of the shuffling (default 1)\n"
    "  --no-shuffle         samples in file order\n"
    "  --eval-data SOURCE   held-out data, evaluated after the last step\n"
    "  --eval-every N       ... and after every N steps\n"
    "training\n"
    "  --steps S            train up to step S (default 100)\n"
    "  --optimizer NAME     one of these, the first by default:\n"
    "%s"
    "  --lr X               peak learning rate (default 1e-3)\n"
    "  --warmup N           linear warm-up over N steps (default 0)\n"
    "  --decay-steps N      cosine decay to --min-lr at step N (default 0: constant)\n"
    "  --min-lr X           (default 0)\n"
    "  --weight-decay X     decoupled, on matrices (default 0.1)\n"
    "  --beta1 X --beta2 X --epsilon X    AdamW (default 0.9, 0.95, 1e-8)\n"
    "  --momentum X         SGD (default 0.9)\n"
    "  --clip X             global gradient norm limit, 0: none (default 1)\n"
    "  --seed S             weights and dropout (default 1)\n"
    "checkpoints\n"
    "  --checkpoint DIR     save after the last step; independent of the plan\n"
    "  --save-every N       ... and after every N steps\n"
    "  --resume             continue from the newest checkpoint in DIR\n"
    "output\n"
    "  --log-every N        print every N-th step (default 10)\n"
    "  --json               one JSON object per step and line\n"
    "  --trace FILE.json    Chrome trace of the last step, predicted and measured (Perfetto)\n"
    "  --report FILE.html   a page with the last step, predicted above measured\n"
    "  --checksum           print a hash of each replica's weights at the end\n"
    "job\n"
    "  --timeout S          end the job if a rank waits for S seconds without progress\n"
    "                       (default 120, 0: never)\n"
    "  --device NAME        one of these (default cpu), or auto: the first that every rank has;\n"
    "                       ranks of a machine take its GPUs in turn and may share one\n"
    "%s"
    "  --precision NAME     fp32, tf32 or bf16 (default: the plan's); the CPU has fp32 only\n"
    "  --help, --version\n"
    "\n"
    "exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no plan fits\n";

static void add_line(smp_text *text, const char *name, const char *summary)
{
    smp_text_append(text, "%*s%-7s %s\n", 25, "", name, summary);
}

static void print_usage(void)
{
    smp_text data = {0}, optimizers = {0}, devices = {0};
    for (const smp_source_kind *const *k = smp__source_kinds(); *k; k++)
        smp_text_append(&data, "%*s%s\n", 25, "", (*k)->form);
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++)
        add_line(&optimizers, (*o)->name, (*o)->summary);
    for (const smp_device *const *d = smp_devices(); *d; d++)
        add_line(&devices, (*d)->name, (*d)->summary);
    if (!data.failed && !optimizers.failed && !devices.failed)
        printf(usage, data.data, optimizers.data, devices.data);
    smp_text_free(&data);
    smp_text_free(&optimizers);
    smp_text_free(&devices);
}

static void print_version(void)
{
    smp_text text = {0};
    smp_text_append(&text, "smp-run %s\n%s\n", smp_version(), smp_math_name());
    smp_cuda_describe(&text);
    fputs(text.data ? text.data : "", stdout);
    smp_text_free(&text);
}

/* One process prints what all of them found: rank 0, or a process not started by mpirun. */
static bool speaks(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return !rank || strcmp(rank, "0") == 0;
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

static smp_status parse_seed(const char *option, const char *text, uint64_t *out)
{
    int64_t value = 0;
    SMP_TRY(parse_count(option, text, 0, &value));
    *out = (uint64_t)value;
    return SMP_OK;
}

static smp_status add_source(const char *option, const char *text, const char **list, int *n)
{
    if (*n == MAX_SOURCES)
        return smp_fail(SMP_ERR_INPUT, "--%s: given more than %d times", option, MAX_SOURCES);
    list[(*n)++] = text;
    return SMP_OK;
}

typedef struct arguments {
    smp_train_options train;
    const char *data[MAX_SOURCES];
    const char *eval_data[MAX_SOURCES];
    bool help, version;
} arguments;

static smp_status set_option(arguments *a, int value, const char *name, const char *text)
{
    smp_train_options *t = &a->train;
    float seconds = 0.0f;
    switch ((flag)value) {
    case FLAG_DATA:
        return add_source(name, text, a->data, &t->n_data);
    case FLAG_EVAL_DATA:
        return add_source(name, text, a->eval_data, &t->n_eval_data);
    case FLAG_STEPS:
        return parse_count(name, text, 1, &t->steps);
    case FLAG_LOG_EVERY:
        return parse_count(name, text, 1, &t->log_every);
    case FLAG_EVAL_EVERY:
        return parse_count(name, text, 1, &t->eval_every);
    case FLAG_SAVE_EVERY:
        return parse_count(name, text, 1, &t->save_every);
    case FLAG_WARMUP:
        return parse_count(name, text, 0, &t->job.warmup_steps);
    case FLAG_DECAY_STEPS:
        return parse_count(name, text, 0, &t->job.decay_steps);
    case FLAG_LR:
        return parse_float(name, text, &t->job.lr);
    case FLAG_MIN_LR:
        return parse_float(name, text, &t->job.min_lr);
    case FLAG_WEIGHT_DECAY:
        return parse_float(name, text, &t->job.weight_decay);
    case FLAG_BETA1:
        return parse_float(name, text, &t->job.beta1);
    case FLAG_BETA2:
        return parse_float(name, text, &t->job.beta2);
    case FLAG_EPSILON:
        return parse_float(name, text, &t->job.epsilon);
    case FLAG_MOMENTUM:
        return parse_float(name, text, &t->job.momentum);
    case FLAG_CLIP:
        return parse_float(name, text, &t->job.clip_norm);
    case FLAG_SEED:
        return parse_seed(name, text, &t->job.seed);
    case FLAG_DATA_SEED:
        return parse_seed(name, text, &t->data_seed);
    case FLAG_TIMEOUT:
        SMP_TRY(parse_float(name, text, &seconds));
        t->job.timeout_s = (double)seconds;
        return SMP_OK;
    case FLAG_OPTIMIZER:
        t->job.optimizer = text;
        return SMP_OK;
    case FLAG_DEVICE:
        t->job.device = text;
        return SMP_OK;
    case FLAG_PRECISION:
        t->job.precision = text;
        return SMP_OK;
    case FLAG_CHECKPOINT:
        t->checkpoint = text;
        return SMP_OK;
    case FLAG_TRACE:
        t->trace = text;
        t->job.record_trace = 1;
        return SMP_OK;
    case FLAG_REPORT:
        t->report = text;
        t->job.record_trace = 1;
        return SMP_OK;
    case FLAG_NO_SHUFFLE:
        t->shuffle = false;
        return SMP_OK;
    case FLAG_RESUME:
        t->resume = true;
        return SMP_OK;
    case FLAG_JSON:
        t->json = true;
        return SMP_OK;
    case FLAG_CHECKSUM:
        t->checksum = true;
        return SMP_OK;
    case FLAG_HELP:
        a->help = true;
        return SMP_OK;
    case FLAG_VERSION:
        a->version = true;
        return SMP_OK;
    }
    return smp_fail(SMP_ERR_INPUT, "unknown option; smp-run --help lists the options");
}

static smp_status parse_arguments(int argc, char **argv, arguments *a)
{
    a->train = (smp_train_options){.job = smp_options_default(),
                                   .steps = 100,
                                   .log_every = 10,
                                   .data_seed = 1,
                                   .shuffle = true};
    opterr = 0;
    for (int value, index = 0;
         (value = getopt_long(argc, argv, ":", long_options, &index)) != -1;) {
        if (value == '?' || value == ':')
            return smp_usage_bad_option(argv[optind - 1], value == ':', long_options);
        SMP_TRY(set_option(a, value, long_options[index].name, optarg));
    }
    if (a->help || a->version)
        return SMP_OK;
    if (argc - optind != 1)
        return smp_fail(SMP_ERR_INPUT, "got %d plans, expected one: smp-run PLAN --data SOURCE",
                        argc - optind);
    a->train.job.plan = argv[optind];
    a->train.data = a->data;
    a->train.eval_data = a->eval_data;
    if (a->train.n_data == 0)
        return smp_fail(SMP_ERR_INPUT,
                        "no --data: name a file to train on; --help lists the kinds");
    if ((a->train.resume || a->train.save_every > 0) && !a->train.checkpoint)
        return smp_fail(SMP_ERR_INPUT, "--resume and --save-every need --checkpoint DIR");
    if (a->train.eval_every > 0 && a->train.n_eval_data == 0)
        return smp_fail(SMP_ERR_INPUT, "--eval-every needs --eval-data SOURCE");
    return SMP_OK;
}

int main(int argc, char **argv)
{
    arguments a = {0};
    smp_status status = parse_arguments(argc, argv, &a);
    if (status != SMP_OK || a.help || a.version) {
        if (status != SMP_OK && speaks())
            fprintf(stderr, "smp-run: %s\n", smp_last_error());
        else if (status == SMP_OK && speaks() && a.help)
            print_usage();
        else if (status == SMP_OK && speaks())
            print_version();
        return smp_status_exit_code(status);
    }
    smp__comm_configure();
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    bool job_broken = false;
    status = smp__train(&a.train, &job_broken);
    int code = smp_status_exit_code(status);
    if (job_broken) { /* a step failed on this rank alone, or a peer is gone: nobody else can go on */
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    if (status != SMP_OK && rank == 0)
        fprintf(stderr, "smp-run: %s\n", smp_last_error());
    MPI_Finalize();
    return code;
}
