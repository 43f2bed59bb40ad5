/* smp-partition: plans a model. Flags, wiring and exit code. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/cuda_info.h"
#include "graph/base/usage.h"
#include "graph/math/math.h"
#include "schedule/report.h"
#include "schedule/trace.h"

enum { MAX_COUNT = 1 << 20 };

static const char usage[] =
    "usage: smp-partition MODEL [-o plan.yaml] [options]\n"
    "\n"
    "Splits a model into pipeline stages and schedules micro-batches through them. Prints a table "
    "of\n"
    "stages; -o writes the plan. What is left out is auto: the least simulated time per\n"
    "sample that fits; within 1 % of it the fewest micro-batches, then the smallest peak.\n"
    "\n"
    "  -o FILE                      where to write the plan\n"
    "  -n DEVICES                   devices to use (default: all of the cluster; without a "
    "cluster\n"
    "                               stages x ddp, or one per core)\n"
    "  --cluster FILE               devices and links (default: this machine)\n"
    "  --profile FILE               measured costs from smp-profile (default: estimated)\n"
    "what is searched\n"
    "  --stages P|auto              pipeline ranks\n"
    "  --ddp D|auto                 replicas\n"
    "  --chunks V|auto              stages per pipeline rank\n"
    "  --microbatches M|auto        micro-batches per replica and step\n"
    "  --microbatch-size B          samples in a micro-batch (default: the profile's, or 1)\n"
    "  --pipeline NAME              simple, interleaved or auto\n"
    "what is best\n"
    "  --optimize speed|memory      (default speed)\n"
    "  --objective step|bottleneck  simulated step time (default), or the slowest stage alone\n"
    "  --placement cluster|spread   neighbours are the ranks of a pipeline (default), or the\n"
    "                               replicas of a stage\n"
    "  --memory SIZE                limit per device (default: the device's)\n"
    "  --partitioner NAME           one partitioner instead of the best of all\n"
    "  --seed S                     (default 1)\n"
    "output\n"
    "  --explain                    why this plan: solver, bottleneck, bound, best configurations\n"
    "  --json                       the plan as one JSON object instead of the table\n"
    "  --trace FILE.json            predicted timeline (Chrome trace, opens in Perfetto)\n"
    "  --help, --version\n"
    "not available in this version\n"
    "  --recompute auto|all (none is what it does), --active-microbatches K, --report FILE.html,\n"
    "  --export FORMAT:FILE, --pipeline zero-bubble\n"
    "\n"
    "exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no plan fits\n";

typedef enum flag {
    FLAG_CLUSTER = 256,
    FLAG_PROFILE,
    FLAG_STAGES,
    FLAG_DDP,
    FLAG_CHUNKS,
    FLAG_MICROBATCHES,
    FLAG_MICROBATCH_SIZE,
    FLAG_PIPELINE,
    FLAG_OPTIMIZE,
    FLAG_OBJECTIVE,
    FLAG_PLACEMENT,
    FLAG_MEMORY,
    FLAG_PARTITIONER,
    FLAG_SEED,
    FLAG_EXPLAIN,
    FLAG_JSON,
    FLAG_TRACE,
    FLAG_RECOMPUTE,
    FLAG_LATER,
    FLAG_HELP,
    FLAG_VERSION
} flag;

static const struct option long_options[] = {
    {"cluster", required_argument, NULL, FLAG_CLUSTER},
    {"profile", required_argument, NULL, FLAG_PROFILE},
    {"stages", required_argument, NULL, FLAG_STAGES},
    {"ddp", required_argument, NULL, FLAG_DDP},
    {"chunks", required_argument, NULL, FLAG_CHUNKS},
    {"microbatches", required_argument, NULL, FLAG_MICROBATCHES},
    {"microbatch-size", required_argument, NULL, FLAG_MICROBATCH_SIZE},
    {"pipeline", required_argument, NULL, FLAG_PIPELINE},
    {"optimize", required_argument, NULL, FLAG_OPTIMIZE},
    {"objective", required_argument, NULL, FLAG_OBJECTIVE},
    {"placement", required_argument, NULL, FLAG_PLACEMENT},
    {"memory", required_argument, NULL, FLAG_MEMORY},
    {"partitioner", required_argument, NULL, FLAG_PARTITIONER},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"explain", no_argument, NULL, FLAG_EXPLAIN},
    {"json", no_argument, NULL, FLAG_JSON},
    {"trace", required_argument, NULL, FLAG_TRACE},
    {"recompute", required_argument, NULL, FLAG_RECOMPUTE},
    {"active-microbatches", required_argument, NULL, FLAG_LATER},
    {"report", required_argument, NULL, FLAG_LATER},
    {"export", required_argument, NULL, FLAG_LATER},
    {"help", no_argument, NULL, FLAG_HELP},
    {"version", no_argument, NULL, FLAG_VERSION},
    {NULL, 0, NULL, 0},
};

typedef struct arguments {
    smp_search_request request;
    const char *model, *output, *cluster, *profile, *trace;
    bool explain, json, help, version;
} arguments;

static smp_status parse_count(const char *option, const char *text, bool automatic, int *out)
{
    int64_t value = 0;
    if (automatic && strcmp(text, "auto") == 0) {
        *out = 0;
        return SMP_OK;
    }
    if (!smp_parse_int(text, &value) || value < 1 || value > MAX_COUNT)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a whole number from 1 to %d%s",
                        option, text, MAX_COUNT, automatic ? ", or auto" : "");
    *out = (int)value;
    return SMP_OK;
}

/* One of two words: false and true. */
static smp_status parse_choice(const char *option, const char *text, const char *first,
                               const char *second, bool *is_second)
{
    *is_second = strcmp(text, second) == 0;
    if (!*is_second && strcmp(text, first) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected %s or %s", option, text, first,
                        second);
    return SMP_OK;
}

static smp_status parse_schedule(const char *text, const char **out)
{
    *out = NULL;
    if (strcmp(text, "auto") == 0)
        return SMP_OK;
    if (strcmp(text, "zero-bubble") == 0)
        return smp_fail(SMP_ERR_INPUT, "--pipeline zero-bubble is not available in this version");
    if (!smp_schedule_find(text))
        return smp_fail(SMP_ERR_INPUT, "--pipeline: got '%s', expected simple, interleaved or auto",
                        text);
    *out = text;
    return SMP_OK;
}

static smp_status parse_partitioner(const char *text, const char **out)
{
    *out = NULL;
    if (strcmp(text, "auto") == 0)
        return SMP_OK;
    if (smp_partitioner_find(text)) {
        *out = text;
        return SMP_OK;
    }
    smp_text names = {0};
    for (const smp_partitioner *const *p = smp_partitioners(); *p; p++)
        smp_text_append(&names, "%s, ", (*p)->name);
    smp_fail(SMP_ERR_INPUT, "--partitioner: got '%s', expected %sor auto", text,
             names.data ? names.data : "");
    smp_text_free(&names);
    return SMP_ERR_INPUT;
}

static smp_status parse_memory(const char *text, int64_t *out)
{
    if (!smp_parse_bytes(text, out) || *out < 1)
        return smp_fail(SMP_ERR_INPUT, "--memory: got '%s', expected a size such as 80GB or 512MiB",
                        text);
    return SMP_OK;
}

static smp_status parse_seed(const char *text, uint64_t *out)
{
    int64_t value;
    if (!smp_parse_int(text, &value) || value < 0)
        return smp_fail(SMP_ERR_INPUT, "--seed: got '%s', expected a whole number of 0 or more",
                        text);
    *out = (uint64_t)value;
    return SMP_OK;
}

static smp_status set_search_option(smp_search_request *r, int option, const char *name,
                                    const char *text)
{
    bool second = false;
    int count = 0;
    switch (option) {
    case 'n':
        return parse_count("-n", text, false, &r->devices);
    case FLAG_STAGES:
        return parse_count(name, text, true, &r->stages);
    case FLAG_DDP:
        return parse_count(name, text, true, &r->ddp);
    case FLAG_CHUNKS:
        return parse_count(name, text, true, &r->chunks);
    case FLAG_MICROBATCHES:
        return parse_count(name, text, true, &r->microbatches);
    case FLAG_MICROBATCH_SIZE:
        SMP_TRY(parse_count(name, text, false, &count));
        r->microbatch_size = count;
        return SMP_OK;
    case FLAG_PIPELINE:
        return parse_schedule(text, &r->schedule);
    case FLAG_OPTIMIZE:
        SMP_TRY(parse_choice(name, text, "speed", "memory", &second));
        r->optimize = second ? SMP_OPTIMIZE_MEMORY : SMP_OPTIMIZE_SPEED;
        return SMP_OK;
    case FLAG_OBJECTIVE:
        SMP_TRY(parse_choice(name, text, "step", "bottleneck", &second));
        r->objective = second ? SMP_OBJECTIVE_BOTTLENECK : SMP_OBJECTIVE_STEP;
        return SMP_OK;
    case FLAG_PLACEMENT:
        SMP_TRY(parse_choice(name, text, "cluster", "spread", &second));
        r->placement = second ? SMP_PLACEMENT_SPREAD : SMP_PLACEMENT_CLUSTER;
        return SMP_OK;
    case FLAG_MEMORY:
        return parse_memory(text, &r->memory_bytes);
    case FLAG_PARTITIONER:
        return parse_partitioner(text, &r->partitioner);
    default:
        return parse_seed(text, &r->seed);
    }
}

static smp_status set_option(arguments *a, int option, const char *name, const char *text)
{
    switch (option) {
    case 'o':
        a->output = text;
        return SMP_OK;
    case FLAG_CLUSTER:
        a->cluster = text;
        return SMP_OK;
    case FLAG_PROFILE:
        a->profile = text;
        return SMP_OK;
    case FLAG_TRACE:
        a->trace = text;
        return SMP_OK;
    case FLAG_EXPLAIN:
        a->explain = true;
        return SMP_OK;
    case FLAG_JSON:
        a->json = true;
        return SMP_OK;
    case FLAG_HELP:
        a->help = true;
        return SMP_OK;
    case FLAG_VERSION:
        a->version = true;
        return SMP_OK;
    case FLAG_RECOMPUTE:
        if (strcmp(text, "none") == 0)
            return SMP_OK;
        return smp_fail(SMP_ERR_INPUT, "--recompute: got '%s', this version has none", text);
    case FLAG_LATER:
        return smp_fail(SMP_ERR_INPUT, "%s is not available in this version", name);
    default:
        return set_search_option(&a->request, option, name, text);
    }
}

static smp_status parse_arguments(int argc, char **argv, arguments *a)
{
    opterr = 0;
    for (int option, index = 0;
         (option = getopt_long(argc, argv, ":o:n:", long_options, &index)) != -1;) {
        char name[64] = "";
        if (option == '?' || option == ':')
            return smp_usage_bad_option(argv[optind - 1], option == ':', long_options);
        if (option >= FLAG_CLUSTER)
            snprintf(name, sizeof name, "--%s", long_options[index].name);
        SMP_TRY(set_option(a, option, name, optarg));
    }
    if (a->help || a->version)
        return SMP_OK;
    if (argc - optind != 1)
        return smp_fail(SMP_ERR_INPUT, "got %d models, expected one: smp-partition MODEL",
                        argc - optind);
    a->model = argv[optind];
    return SMP_OK;
}

/* Without a cluster file: so many devices of this machine as asked for, directly or by stages and
 * replicas, else one per core. */
static int local_devices(const smp_search_request *request)
{
    if (request->devices > 0)
        return request->devices;
    if (request->stages > 0 || request->ddp > 0) {
        int64_t devices = (int64_t)(request->stages > 0 ? request->stages : 1) *
                          (request->ddp > 0 ? request->ddp : 1);
        return devices > MAX_COUNT ? MAX_COUNT : (int)devices;
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > MAX_COUNT ? MAX_COUNT : (int)cores;
}

static smp_status open_cluster(arguments *a, smp_cluster **out)
{
    smp_search_request *r = &a->request;
    if (a->cluster) {
        SMP_TRY(smp_cluster_read(a->cluster, out));
        if (r->devices == 0)
            r->devices = smp_cluster_devices(*out);
        return SMP_OK;
    }
    r->devices = local_devices(r);
    SMP_TRY(smp_cluster_local(r->devices, out));
    if (r->profile && r->profile->link.n_point > 0)
        return smp_cluster_set_intra_link(*out, &r->profile->link);
    return SMP_OK;
}

/* `path` as seen from `folder`, both absolute and clean; malloc'ed. */
static char *relative_path(const char *folder, const char *path)
{
    size_t same = 0;
    smp_text text = {0};
    for (size_t i = 0;; i++) {
        bool ends = folder[i] == '\0' || folder[i] == '/';
        if (ends && path[i] == '/')
            same = i;
        if (folder[i] == '\0' || folder[i] != path[i])
            break;
    }
    for (const char *c = folder + same; *c; c++)
        if (*c == '/' && c[1])
            smp_text_append(&text, "../");
    smp_text_append(&text, "%s", path + same + 1);
    if (text.failed)
        smp_text_free(&text);
    return text.data;
}

/* Real path of the folder that a file lies in; malloc'ed, NULL if there is none. */
static char *folder_of(const char *path, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    if (!slash)
        return realpath(".", NULL);
    if (slash == path)
        return strdup("/");
    char *folder = strndup(path, (size_t)(slash - path)), *real = NULL;
    if (folder)
        real = realpath(folder, NULL);
    free(folder);
    return real;
}

/* The model as seen from the plan's folder, so that both can be moved together; malloc'ed, NULL:
 * as given. */
static char *model_from_plan(const char *model, const char *output)
{
    const char *model_name, *plan_name;
    char *result = NULL, *from = folder_of(output, &plan_name);
    char *folder = folder_of(model, &model_name);
    smp_text path = {0};
    if (from && folder) {
        smp_text_append(&path, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, model_name);
        if (!path.failed)
            result = relative_path(strcmp(from, "/") == 0 ? "" : from, path.data);
    }
    smp_text_free(&path);
    free(from);
    free(folder);
    return result;
}

static smp_status write_trace(const smp_plan *plan, const smp_graph *graph, const char *path)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    smp_simulation *simulation = NULL;
    smp_trace_event *events = NULL;
    smp_text json = {0};
    int64_t n = 0;
    smp_status status = smp_plan_bind(plan, graph, &stage_of_op);
    if (status == SMP_OK)
        status = smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    if (status == SMP_OK)
        status = smp_simulate_plan(plan, graph, flow, &simulation);
    if (status == SMP_OK)
        status = smp_trace_predicted(plan, simulation, &events, &n);
    if (status == SMP_OK)
        status = smp_trace_format(plan, events, n, NULL, 0, &json);
    if (status == SMP_OK)
        status = smp_file_write(path, json.data, json.length);
    smp_text_free(&json);
    free(events);
    smp_simulation_destroy(simulation);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

static smp_status print_text(FILE *stream, const smp_text *text)
{
    if (text->length > 0 &&
        (fwrite(text->data, 1, text->length, stream) != text->length || fflush(stream) != 0))
        return smp_fail(SMP_ERR_FAILED, "standard output: %s", strerror(errno));
    return SMP_OK;
}

/* Files first, so that what is printed is true; the reasons go beside a JSON object, not into it. */
static smp_status write_results(const arguments *a, const smp_planner_result *result)
{
    const smp_graph *graph = a->request.graph;
    smp_text plan = {0}, shown = {0}, reasons = {0};
    smp_status status = smp_plan_format(result->plan, &plan);
    if (status == SMP_OK && a->json)
        status = smp_plan_format_json(result->plan, &shown);
    else if (status == SMP_OK)
        status = smp_report_table(result, graph, &shown);
    if (status == SMP_OK && a->explain)
        status = smp_report_explain(result, &reasons);
    if (status == SMP_OK && a->trace)
        status = write_trace(result->plan, graph, a->trace);
    if (status == SMP_OK && a->output)
        status = smp_file_write(a->output, plan.data, plan.length);
    if (status == SMP_OK)
        status = print_text(stdout, &shown);
    if (status == SMP_OK && a->explain && !a->json)
        fputc('\n', stdout);
    if (status == SMP_OK)
        status = print_text(a->json ? stderr : stdout, &reasons);
    smp_text_free(&plan);
    smp_text_free(&shown);
    smp_text_free(&reasons);
    return status;
}

static smp_status partition(arguments *a)
{
    smp_graph *graph = NULL;
    smp_profile *profile = NULL;
    smp_cluster *cluster = NULL;
    smp_planner_result result = {0};
    char *model_path = NULL;
    smp_status status = smp_graph_read(a->model, &graph);
    if (status == SMP_OK && a->profile)
        status = smp_profile_read(a->profile, graph, &profile);
    a->request.graph = graph;
    a->request.profile = profile;
    if (status == SMP_OK)
        status = open_cluster(a, &cluster);
    a->request.cluster = cluster;
    if (a->request.microbatch_size == 0)
        a->request.microbatch_size = profile ? profile->microbatch_size : 1;
    if (status == SMP_OK && a->output)
        model_path = model_from_plan(a->model, a->output);
    if (status == SMP_OK)
        status = smp_plan_make(&a->request, model_path ? model_path : a->model, &result);
    if (status == SMP_OK)
        status = write_results(a, &result);
    smp_planner_result_destroy(&result);
    free(model_path);
    smp_cluster_destroy(cluster);
    smp_profile_destroy(profile);
    smp_graph_destroy(graph);
    return status;
}

static void print_version(void)
{
    smp_text text = {0};
    smp_text_append(&text, "smp-partition %s\n%s\n", smp_version(), smp_math_name());
    smp_cuda_describe(&text);
    fputs(text.data ? text.data : "", stdout);
    smp_text_free(&text);
}

int main(int argc, char **argv)
{
    arguments a = {.request = {.seed = 1}};
    smp_status status = parse_arguments(argc, argv, &a);
    if (status == SMP_OK && a.help)
        fputs(usage, stdout);
    else if (status == SMP_OK && a.version)
        print_version();
    else if (status == SMP_OK)
        status = partition(&a);
    if (status != SMP_OK)
        fprintf(stderr, "smp-partition: %s\n", smp_last_error());
    return smp_status_exit_code(status);
}
