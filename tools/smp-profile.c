/* smp-profile: measures a model's operators on this machine. Flags, wiring and exit code. */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/transport/comm.h"
#include "exec/probe/probe.h"
#include "graph/base/text.h"
#include "graph/math/math.h"
#include "graph/ops/check_gradients.h"
#include "graph/ops/custom_op.h"
#include "profile/describe.h"
#include "profile/distinct.h"
#include "profile/estimate.h"
#include "tools/options/options.h"

enum { SAMPLES = 9, BAR_WIDTH = 40, LINK_RANKS = 2, CHECK_BATCH = 2 };

#define MIN_SAMPLE_US 2000
#define MOST_SPREAD 0.1 /* between the quartiles: what is more is measured again */
#define AGAIN 2
#define LINK_S 10
#define MAX_LINK_S 1e6
#define QUIET_S 5                           /* into a file, a line of progress so often */
#define RELAUNCHED "SMP_PROFILE_RELAUNCHED" /* set for the ranks that --links starts */

typedef struct arguments {
    smp_common_options common;
    const char *output, *offload_to, *description;
    smp_target target;
    int64_t microbatch_size; /* 0: not given */
    double link_s;
    smp_option_list set, plugins;
    bool links, check_gradients;
} arguments;

static smp_status set_device(void *options, const char *name, const char *text)
{
    arguments *a = options;
    return smp_backend_read((smp_where){0}, name, text, &a->target.backend);
}

static smp_status set_precision(void *options, const char *name, const char *text)
{
    arguments *a = options;
    return smp_precision_read((smp_where){0}, name, text, &a->target.precision);
}

#define AT(field) offsetof(arguments, field)

static const smp_option rows[] = {
    {"o", .kind = SMP_OPTION_TEXT, .value = "FILE", .at = AT(output),
     .help = "where to write the profile (default: standard output)"},
    {"device", .kind = SMP_OPTION_OWN, .value = SMP_BACKEND_WORDS, .set = set_device,
     .help = "what to measure (default cpu); of several GPUs, each rank its own"},
    {"microbatch-size", .kind = SMP_OPTION_INT64, .value = "B", .at = AT(microbatch_size),
     .least = 1, .most = SMP__MAX_MICROBATCH, .help = "samples in a micro-batch (default 1)"},
    {"dtype", .kind = SMP_OPTION_OWN, .value = "fp32|tf32|bf16|fp16|fp8", .set = set_precision,
     .help = "number format of the operators (default fp32; tf32: cuda only)"},
    {"links", .kind = SMP_OPTION_YES, .at = AT(links),
     .help =
         "measure the links between ranks too, inside a node and between nodes, and of a device "
         "to host memory, where stashes and states may travel; without mpirun, two ranks are "
         "started for it"},
    {"link-time", .kind = SMP_OPTION_SECONDS, .value = "SECONDS", .at = AT(link_s), .above = true,
     .most = MAX_LINK_S,
     .help = "about so long for that (default 10): messages grow while there is time"},
    {"offload-to", .kind = SMP_OPTION_TEXT, .value = "DIR", .at = AT(offload_to),
     .help = "with --links: the link to a file in DIR instead of host memory, as of smp-run (cpu)"},
    {"describe-device", .kind = SMP_OPTION_TEXT, .value = "FILE", .at = AT(description),
     .help = "writes what the operators tell of the device, for `device: {description: FILE}` of "
             "cluster files; examples/profiles/describe-device.yaml has the operators for that"},
    {"check-gradients", .kind = SMP_OPTION_YES, .at = AT(check_gradients),
     .help =
         "measure nothing: compare the gradients of every operator, as `backward` has them on the "
         "CPU in fp32, with differences of its forward (micro-batches of 2 unless "
         "--microbatch-size says otherwise)"},
    {"set", .kind = SMP_OPTION_LIST, .value = "NAME=VALUE", .at = AT(set),
     .help = "another value for an entry of the model's 'let', such as T=4096; repeatable"},
    {"plugin", .kind = SMP_OPTION_LIST, .value = "FILE.so", .at = AT(plugins),
     .help = "operators of your own that the model uses (smp_op_register); repeatable"},
    {0},
};

static const smp_option_table table = {
    .program = "smp-profile",
    .summary = "measure the operators of a model and the links of a machine",
    .operand = "smp-profile MODEL",
    .argument = "model",
    .usage = "smp-profile MODEL [-o profile.yaml] [options]\nmpirun -n N smp-profile MODEL "
             "[options]",
    .about = "Measures every operator of a model on this machine: the median of several "
             "samples, equal operators once; those whose samples scatter up to twice "
             "again; on the CPU also what it costs that a rank gets a core from another "
             "one, on a GPU which algorithm is the fastest for each matrix product, which "
             "plans and runs then take. Under mpirun all ranks measure at once, as they "
             "will train; rank 0's times are written. Start no more ranks than there are "
             "cores.",
    .exits = "exit codes: 0 done, 1 failed, or a gradient is wrong, 2 wrong usage or bad "
             "input",
    .row = rows,
};

static smp_status check_for_gradients(const arguments *a)
{
    if (a->links || a->output || a->description)
        return smp_fail(SMP_ERR_INPUT,
                        "--check-gradients: nothing is measured with it: leave %s out",
                        a->links    ? "--links"
                        : a->output ? "-o"
                                    : "--describe-device");
    if (a->target.backend != SMP_BACKEND_CPU || a->target.precision != SMP_PRECISION_FP32)
        return smp_fail(SMP_ERR_INPUT,
                        "--check-gradients: got --device %s --dtype %s, expected "
                        "--device cpu --dtype fp32, or neither",
                        smp_backend_name(a->target.backend),
                        smp_precision_name(a->target.precision));
    return SMP_OK;
}

static smp_status check_arguments(const arguments *a)
{
    SMP_TRY(smp_file_spares(a->output, a->common.operand));
    SMP_TRY(smp_file_spares(a->output, a->common.config));
    SMP_TRY(smp_file_spares(a->description, a->common.operand));
    SMP_TRY(smp_file_spares(a->description, a->common.config));
    if (a->offload_to && !a->links)
        return smp_fail(SMP_ERR_INPUT,
                        "--offload-to %s: nothing is measured of that without "
                        "--links",
                        a->offload_to);
    if (a->check_gradients)
        return check_for_gradients(a);
    if (a->description && a->target.precision == SMP_PRECISION_FP8)
        return smp_fail(SMP_ERR_INPUT,
                        "--describe-device: got --dtype fp8, in which products have two rates: "
                        "expected another one");
    if (smp_target_check(a->target) == SMP_OK)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "--dtype %s: the %s operators have fp32, bf16, fp16 and fp8; give --device %s",
                    smp_precision_name(a->target.precision), smp_backend_of(a->target)->title,
                    smp_backend_with(a->target.precision));
}

static smp_status open_model(const arguments *a, smp_graph **out)
{
    smp_graph *graph;
    SMP_TRY(smp_plugins_load(a->plugins.item, a->plugins.n));
    const smp_settings settings = {.n = a->set.n, .text = a->set.item};
    SMP_TRY(smp_graph_read_joined(a->common.operand, settings, &graph));
    smp_status status = smp_graph_set_target(graph, a->target);
    if (status == SMP_OK)
        status = smp_graph_check_runnable(graph);
    if (status == SMP_OK)
        *out = graph;
    else
        smp_graph_destroy(graph);
    return status;
}

/* Starts this program again as two ranks; returns only if that fails. */
static smp_status relaunch(int argc, char **argv)
{
    char self[4096], ranks[16];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char **command = calloc((size_t)argc + 8, sizeof *command);
    int n = 0;
    smp_status status;
    if (!command)
        return smp_fail_memory((size_t)argc * sizeof *command);
    if (getenv(RELAUNCHED) || length <= 0) {
        free(command);
        return smp_fail(SMP_ERR_FAILED, "--links: mpirun is not that of Open MPI: start "
                                        "`mpirun -n 2 smp-profile` yourself");
    }
    self[length] = '\0';
    snprintf(ranks, sizeof ranks, "%d", LINK_RANKS);
    command[n++] = "mpirun";
    command[n++] = "--oversubscribe";
    command[n++] = "-n";
    command[n++] = ranks;
    command[n++] = self;
    for (int i = 1; i < argc; i++)
        command[n++] = argv[i];
    setenv(RELAUNCHED, "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    execvp(command[0], command);
    status = smp_fail(SMP_ERR_FAILED,
                      "--links: cannot start mpirun: %s; install openmpi-bin, or leave --links out",
                      strerror(errno));
    free(command);
    return status;
}

/* A terminal sees everything; a file gets a line now and then, so that a long wait is not
 * silent. */
typedef struct progress {
    bool terminal;
    double shown_s; /* smp_clock_s() of the last line, or of the start */
} progress;

static bool is_quiet(progress *p)
{
    const double now_s = smp_clock_s();
    if (!p->terminal && now_s - p->shown_s < QUIET_S)
        return true;
    p->shown_s = now_s;
    return false;
}

static void show_progress(void *context, int done, int total)
{
    progress *p = context;
    char bar[BAR_WIDTH + 1];
    const int filled = (int)((int64_t)done * BAR_WIDTH / total);
    if (is_quiet(p))
        return;
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '#', (size_t)filled);
    bar[BAR_WIDTH] = '\0';
    if (p->terminal)
        fprintf(stderr, "\rmeasuring [%s] %d/%d%s", bar, done, total, done == total ? "\n" : "");
    else
        fprintf(stderr, "smp-profile: operators: %d of %d measured\n", done, total);
    fflush(stderr);
}

static void show_link(void *context, smp_link_kind kind, int64_t bytes, double left_s)
{
    char size[32];
    if (!is_quiet(context))
        fprintf(stderr, "smp-profile: link %s: messages of %s, %.1f s left\n", smp_link_name(kind),
                smp_format_bytes(size, sizeof size, bytes), left_s > 0 ? left_s : 0.0);
    fflush(stderr);
}

static void show_again(void *context, int scattered, int total)
{
    (void)context;
    fprintf(
        stderr,
        "smp-profile: %d of %d different operators scatter by more than %g %%: measured again\n",
        scattered, total, 100 * MOST_SPREAD);
}

/* What scatters in spite of all measurements. */
static void show_spread(const smp_profile *profile)
{
    int32_t worst = 0, n = 0;
    for (int32_t i = 0; i < profile->n_op; i++) {
        n += profile->spread[i] > MOST_SPREAD;
        worst = profile->spread[i] > profile->spread[worst] ? i : worst;
    }
    if (n > 0)
        fprintf(stderr,
                "smp-profile: warning: the times of %d of %d operators scatter by more than %g %%, "
                "those of '%s' by %.0f %% (`spread` in the profile): is the machine idle?\n",
                n, profile->n_op, 100 * MOST_SPREAD, profile->name[worst],
                100 * profile->spread[worst]);
}

static smp_status write_result(const smp_profile *profile, const char *output)
{
    smp_text yaml = {0};
    smp_status status;
    if (output)
        return smp_profile_write(profile, output);
    status = smp_profile_format(profile, &yaml);
    if (status == SMP_OK &&
        (fwrite(yaml.data, 1, yaml.length, stdout) != yaml.length || fflush(stdout) != 0))
        status = smp_fail(SMP_ERR_FAILED, "standard output: %s", strerror(errno));
    smp_text_free(&yaml);
    return status;
}

/* A device without memory of its own has its share of the machine's. */
static smp_status describe(const arguments *a, const smp_graph *graph, const smp_profile *profile)
{
    smp_device_measure measure;
    smp_cluster *cluster = NULL;
    smp_text yaml = {0};
    SMP_TRY(smp_device_measure_get(graph, profile, &measure));
    SMP_TRY(smp_cluster_default(a->target, profile, 1, &cluster));
    smp_status status = smp_device_describe(&measure, graph, profile->device,
                                            cluster->device[0].memory_bytes, &yaml);
    if (status == SMP_OK)
        status = smp_file_write(a->description, yaml.data, yaml.length);
    smp_text_free(&yaml);
    smp_cluster_destroy(cluster);
    return status;
}

/* comm: NULL without MPI. Collective otherwise; every rank returns the same status. */
static smp_status profile_model(const arguments *a, const smp_graph *graph, smp_comm *comm)
{
    const bool speaks = !comm || comm->world_rank == 0;
    progress shown = {.terminal = isatty(STDERR_FILENO), .shown_s = smp_clock_s()};
    smp_profile_options options = {.microbatch_size =
                                       a->microbatch_size > 0 ? a->microbatch_size : 1,
                                   .links = a->links,
                                   .link_s = a->link_s,
                                   .progress_context = &shown,
                                   .min_sample_us = MIN_SAMPLE_US,
                                   .samples = SAMPLES,
                                   .most_spread = MOST_SPREAD,
                                   .again = AGAIN};
    smp_probe *probe = NULL;
    smp_profile *profile = NULL;
    smp_status status = smp_probe_create(&a->target, a->offload_to, &probe);
    if (speaks) {
        options.progress = show_progress;
        options.again_progress = show_again;
        options.link_progress = show_link;
    }
    if (comm)
        status = smp__comm_agree(comm, status);
    if (status == SMP_OK)
        status = smp_profile_measure(graph, probe, &options, &profile);
    if (status == SMP_OK && speaks) {
        show_spread(profile);
        if (a->description)
            status = describe(a, graph, profile);
        if (status == SMP_OK && (a->output || !a->description))
            status = write_result(profile, a->output);
    }
    if (comm)
        status = smp__comm_agree(comm, status);
    smp_profile_destroy(profile);
    smp_probe_destroy(probe);
    return status;
}

/* "input 0 'x'", "weight 'fc.bias'"; returns the buffer. */
static const char *gradient_name(char *buffer, size_t size, const smp_graph *graph,
                                 const smp_op *op, const smp_gradient_check *check)
{
    if (check->of_param)
        snprintf(buffer, size, "weight '%s'", graph->param[op->param[check->slot]].name);
    else
        snprintf(buffer, size, "input %d '%s'", check->slot,
                 graph->tensor[op->in[check->slot]].name);
    return buffer;
}

static void print_gradient(const smp_graph *graph, const smp_op *op,
                           const smp_gradient_check *check)
{
    static const char *const verdicts[] = {[SMP_GRADIENT_RIGHT] = "right",
                                           [SMP_GRADIENT_UNKNOWN] = "lost in roundings",
                                           [SMP_GRADIENT_WRONG] = "WRONG",
                                           [SMP_GRADIENT_NOT_ADDED] = "WRONG"};
    char name[160], error[32] = "-";
    if (check->verdict != SMP_GRADIENT_UNKNOWN)
        snprintf(error, sizeof error, "%.1e", check->error);
    printf("%-24s %-20s %-32s %8s  %s\n", op->name, op->kind->name,
           gradient_name(name, sizeof name, graph, op, check), error, verdicts[check->verdict]);
    if (check->verdict == SMP_GRADIENT_WRONG && check->element < 0)
        printf("  along itself it is %.6g, by differences of forward %.6g\n", check->got,
               check->expected);
    else if (check->verdict == SMP_GRADIENT_WRONG)
        printf("  element %lld is %.6g, by differences of forward %.6g\n",
               (long long)check->element, check->got, check->expected);
    else if (check->verdict == SMP_GRADIENT_NOT_ADDED)
        printf("  is not added to what its accumulator holds\n");
}

/* One op of those that are alike. *wrong: counts what is. */
static smp_status check_op(const arguments *a, const smp_graph *graph, const smp_op *op, int *wrong)
{
    smp_gradient_check checks[SMP_MAX_GRADIENT_CHECKS];
    int n;
    SMP_TRY(smp_op_check_gradients(
        graph, op, a->microbatch_size > 0 ? a->microbatch_size : CHECK_BATCH, 1, checks, &n));
    for (int i = 0; i < n; i++) {
        print_gradient(graph, op, &checks[i]);
        *wrong += checks[i].verdict >= SMP_GRADIENT_WRONG;
    }
    fflush(stdout);
    return SMP_OK;
}

static smp_status check_gradients(const arguments *a, const smp_graph *graph)
{
    smp__distinct distinct;
    int wrong = 0;
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? smp__distinct_ops(graph, arena, &distinct) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && !graph->training)
        status = smp_fail(SMP_ERR_INPUT, "%s: mode is inference: there are no gradients to check",
                          graph->path);
    for (int32_t i = 0; status == SMP_OK && i < distinct.n; i++)
        status = check_op(a, graph, &graph->op[distinct.first[i]], &wrong);
    if (status == SMP_OK)
        printf("%d different operators of %d checked, gradients that are wrong: %d\n",
               (int)distinct.n, (int)graph->n_op, wrong);
    smp_arena_destroy(arena);
    if (status == SMP_OK && wrong > 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: %d gradients are wrong", graph->path, wrong);
    return status;
}

/* As one rank of a job. */
static smp_status run_rank(const arguments *a)
{
    static smp_comm comm; /* not on the stack: after a failure MPI may still touch it */
    smp_graph *graph = NULL;
    smp_status status = smp__comm_open(&comm, (smp_comm_limits){0});
    if (status != SMP_OK)
        return status;
    status = smp__comm_agree(&comm, open_model(a, &graph));
    if (status == SMP_OK && comm.world_rank == 0 && comm.crowded)
        fprintf(stderr, "smp-profile: warning: %d ranks share fewer cores; times include waiting\n",
                comm.world_size);
    if (status == SMP_OK && a->check_gradients)
        status =
            smp_fail(SMP_ERR_INPUT, "--check-gradients: one process does it, leave mpirun out");
    else if (status == SMP_OK)
        status = profile_model(a, graph, &comm);
    smp_graph_destroy(graph);
    smp__comm_close(&comm);
    return status;
}

/* As the only process; MPI stays untouched. */
static smp_status run_alone(const arguments *a, int argc, char **argv)
{
    smp_graph *graph;
    smp_status status;
    SMP_TRY(open_model(a, &graph));
    status = a->check_gradients ? check_gradients(a, graph)
             : a->links         ? relaunch(argc, argv)
                                : profile_model(a, graph, NULL);
    smp_graph_destroy(graph);
    return status;
}

int main(int argc, char **argv)
{
    arguments a = {.link_s = LINK_S};
    smp_status status = smp_options_read(&table, argc, argv, 1, &a);
    if (status == SMP_OK && !smp_options_answer(&table, &a, &status)) {
        status = check_arguments(&a);
        if (status == SMP_OK)
            status = getenv("OMPI_COMM_WORLD_SIZE") ? run_rank(&a) : run_alone(&a, argc, argv);
    }
    const int code = smp_options_end(&table, status);
    smp_options_close(&a);
    return code;
}
