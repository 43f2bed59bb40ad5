/* Sends and receives of a trace mean in the prediction and in the measurement what smp_trace_event
 * says, whether or not transfers run beside compute, and gathers and sums end when they are done.
 * One stage on each of four ranks; then four replicas. */
#include "tests/mpi/ranks.h"

#include "exec/job/inspect_job.h"

enum { MICROBATCHES = 6, TRIES = 5, MOST_STAGES = 8 };

static const char model[] = "smp: 1\n"
                            "name: chain\n"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [64]}\n"
                            "  goal: {dtype: float32, shape: [64]}\n"
                            "ops:\n"
                            "  - {op: linear, name: a, in: x, out: y, features: 96}\n"
                            "  - {op: gelu, name: b, in: y, out: y}\n"
                            "  - {op: linear, name: c, in: y, out: y, features: 96}\n"
                            "  - {op: gelu, name: d, in: y, out: y}\n"
                            "  - {op: linear, name: e, in: y, out: y, features: 96}\n"
                            "  - {op: linear, name: f, in: y, out: y, features: 64}\n"
                            "  - {op: mse, name: loss, in: [y, goal], out: l}\n"
                            "loss: l\n";

typedef struct span {
    double start_us, end_us;
} span;

/* Of a chain: by direction (forward, backward), stage that sends or receives, micro-batch. */
typedef struct messages {
    span sent[2][MOST_STAGES][MICROBATCHES], received[2][MOST_STAGES][MICROBATCHES];
    span reader[2][MOST_STAGES][MICROBATCHES];
} messages;

static void note(messages *m, const smp_action *a, int stage, double start_us, double end_us)
{
    const span at = {start_us, end_us};
    switch (a->kind) {
    case SMP_ACTION_SEND_F:
    case SMP_ACTION_SEND_B:
        m->sent[a->kind == SMP_ACTION_SEND_B][stage][a->microbatch] = at;
        break;
    case SMP_ACTION_RECV_F:
    case SMP_ACTION_RECV_B:
        m->received[a->kind == SMP_ACTION_RECV_B][stage][a->microbatch] = at;
        break;
    case SMP_ACTION_F:
    case SMP_ACTION_B:
        m->reader[a->kind == SMP_ACTION_B][stage][a->microbatch] = at;
        break;
    default:
        break;
    }
}

/* Every send lasts until its message has arrived, every receive until it is there, and then its
 * reader may begin. Returns the time that readers waited in all, *gap_us what of it was behind
 * receives. */
static double check_messages(const messages *m, bool overlap, double *gap_us)
{
    const double eps_us = 1e-3;
    double waited_us = 0.0;
    *gap_us = 0.0;
    for (int back = 0; back <= 1; back++)
        for (int stage = back; stage < world_size - !back; stage++) {
            const int to = stage + (back ? -1 : 1);
            for (int mb = 0; mb < MICROBATCHES; mb++) {
                const span *sent = &m->sent[back][stage][mb];
                const span *got = &m->received[back][to][mb], *read = &m->reader[back][to][mb];
                const double there_us = fmax(got->start_us, sent->end_us);
                assert_true(sent->end_us > sent->start_us);
                assert_true(overlap ? fabs(got->end_us - there_us) < eps_us
                                    : got->end_us >= there_us - eps_us);
                assert_true(read->start_us >= got->end_us - eps_us);
                waited_us += read->start_us - got->start_us;
                *gap_us += read->start_us - got->end_us;
            }
        }
    return waited_us;
}

static smp *open_chain(void)
{
    const cut c = {
        .stages = world_size, .ddp = 1, .microbatches = MICROBATCHES, .batch = 64, .chunks = 1};
    smp_options options = options_of(model_path(model), c);
    options.runtime.record_trace = 1;
    return open_job(&options);
}

static void take_step(smp *job)
{
    static float values[MICROBATCHES * 64 * 64];
    const void *inputs[2] = {values, values};
    smp_step_result result;
    must(smp_step(job, inputs, &result));
}

static void measure(smp *job, const char *path, messages *m)
{
    take_step(job);
    must(smp_trace_write(job, path));
    memset(m, 0, sizeof *m);
    smp_trace_event *event;
    for (int64_t n = smp__record_events(job->record, &event); n > 0; n--, event++)
        note(m, &event->action, event->stage, event->start_us, event->end_us);
    assert_int_equal(MPI_Allreduce(MPI_IN_PLACE, m, sizeof *m / sizeof(double), MPI_DOUBLE, MPI_SUM,
                                   MPI_COMM_WORLD),
                     MPI_SUCCESS);
}

/* Nothing comes between a message and its reader but a machine that does something else. */
static void test_trace_messages_measured(void **state)
{
    (void)state;
    char path[96];
    bool good = false;
    snprintf(path, sizeof path, "%s/trace.json", ranks_folder);
    smp *job = open_chain();
    for (int attempt = 0; attempt < TRIES && !good; attempt++) {
        messages m;
        double gap_us;
        measure(job, path, &m);
        const double waited_us = check_messages(&m, true, &gap_us);
        good = gap_us < 0.5 * waited_us;
    }
    smp_finalize(job);
    if (world_rank == 0)
        assert_int_equal(unlink(path), 0);
    assert_true(good);
}

static void test_trace_messages_predicted(void **state)
{
    (void)state;
    smp *job = open_chain();
    for (int overlap = 0; overlap <= 1; overlap++) {
        smp_simulated_plan simulated;
        messages m = {0};
        double gap_us;
        ((smp_cluster *)job->plan->cluster)->overlap = overlap;
        must(smp_simulated_plan_open(job->plan, job->graph, &simulated));
        for (int rank = 0; rank < world_size; rank++)
            for (int64_t i = 0; i < job->plan->program[rank].n; i++)
                note(&m, &job->plan->program[rank].action[i], rank,
                     simulated.simulation->start_us[rank][i],
                     simulated.simulation->end_us[rank][i]);
        assert_true(check_messages(&m, overlap, &gap_us) > 0);
        smp_simulated_plan_close(&simulated);
    }
    smp_finalize(job);
}

/* Sharded weights of three chunks over a link of RATE bytes a second: a gather or a sum takes what
 * the longest part to every other rank does, and nothing that needs it begins before. */
static void test_trace_sums_measured(void **state)
{
    (void)state;
    enum { RATE = 2000000, CHUNKS = 3 };
    const cut c = {.stages = 1, .ddp = world_size, .microbatches = 2, .batch = 4, .chunks = CHUNKS};
    smp_options options = options_of(model_path(model), c);
    char path[96];
    double end_us[CHUNKS] = {0}, reduced_us = 0.0;
    int gathers = 0, reductions = 0;
    assert_int_equal(setenv("SMP_THROTTLE", "2000000", 1), 0);
    options.planning.schedule = "breadth-first";
    options.planning.shard = world_size;
    options.planning.shard_what = SMP_SHARD_WEIGHTS;
    options.runtime.record_trace = 1;
    smp *job = open_job(&options);
    assert_int_equal(unsetenv("SMP_THROTTLE"), 0);
    snprintf(path, sizeof path, "%s/trace.json", ranks_folder);
    take_step(job);
    must(smp_trace_write(job, path));
    smp_trace_event *event;
    for (int64_t n = smp__record_events(job->record, &event); n > 0; n--, event++) {
        const smp_action *a = &event->action;
        const double us = event->end_us - event->start_us;
        if (a->kind == SMP_ACTION_GATHER || a->kind == SMP_ACTION_REDUCE) {
            const int64_t floats = job->plan->stage[a->chunk].weight_bytes / 4;
            const double least_us =
                1e6 * 4.0 * (double)(floats / world_size) * (world_size - 1) / RATE;
            if (!(us >= 0.99 * least_us))
                fail_msg("%s of chunk %d: %g us, expected at least %g", smp_action_letters(a->kind),
                         a->chunk, us, least_us);
            gathers += a->kind == SMP_ACTION_GATHER;
            reductions += a->kind == SMP_ACTION_REDUCE;
        }
        if (a->kind == SMP_ACTION_GATHER)
            end_us[a->chunk] = event->end_us;
        else if (a->kind == SMP_ACTION_REDUCE || a->kind == SMP_ACTION_ALL)
            reduced_us = fmax(reduced_us, event->end_us);
        else if (a->kind == SMP_ACTION_F || a->kind == SMP_ACTION_B)
            assert_true(event->start_us >= end_us[a->chunk] - 1e-3);
        else if (a->kind == SMP_ACTION_OPTIMIZE)
            assert_true(event->end_us >= reduced_us);
    }
    assert_true(gathers >= CHUNKS && reductions == CHUNKS);
    smp_finalize(job);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        assert_int_equal(unlink(path), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_messages_measured),
        cmocka_unit_test(test_trace_messages_predicted),
        cmocka_unit_test(test_trace_sums_measured),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
