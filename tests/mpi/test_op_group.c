/* Four processes compute a GPT together, split as Megatron-LM does with its sequence parallelism
 * and by positions with ring attention, and a mixture of experts: loss and gradients are those of
 * one process. And the group by itself: every call against what it says, for arrays of all lengths;
 * a device that does not come is named. */
#include <mpi.h>
#include <time.h>

#include "exec/group/op_group.h"
#include "exec/transport/mpi_lifetime.h"
#include "tests/graph/split/split_run.h"

enum { RANKS = 4, LATE = 2, MOST = 1000, BATCH = 2 };

static int rank;

/* What rank `owner` has at place e in round `round`. */
static float value_of(int owner, int64_t e, int round)
{
    uint64_t h = smp_random_mix((uint64_t)(owner * 100003 + e * 7 + round));
    return (float)((double)(h >> 40) * 0x1p-24 - 0.5);
}

static float sum_of(int64_t e, int round)
{
    float sum = value_of(0, e, round);
    for (int i = 1; i < RANKS; i++)
        sum += value_of(i, e, round);
    return sum;
}

static void check_round(const smp_op_group *g, int64_t n, int round)
{
    float *all = floats(MOST), *got = floats(MOST), *own = floats(MOST);
    for (int64_t e = 0; e < n * RANKS; e++)
        all[e] = value_of(rank, e, round);
    memcpy(own, all, (size_t)n * sizeof *own);
    assert_int_equal(g->all_reduce(g->context, own, n), SMP_OK);
    for (int64_t e = 0; e < n; e++)
        assert_true(own[e] == sum_of(e, round)); /* to the bit: by rising device */
    assert_int_equal(g->all_gather(g->context, all, got, n), SMP_OK);
    for (int64_t e = 0; e < n * RANKS; e++)
        assert_true(got[e] == value_of((int)(e / n), e % n, round));
    assert_int_equal(g->reduce_scatter(g->context, all, own, n), SMP_OK);
    for (int64_t e = 0; e < n; e++)
        assert_true(own[e] == sum_of(rank * n + e, round));
    assert_int_equal(g->all_to_all(g->context, all, got, n), SMP_OK);
    for (int64_t e = 0; e < n * RANKS; e++)
        assert_true(got[e] == value_of((int)(e / n), rank * n + e % n, round));
    for (int by = 0; by < RANKS; by++) {
        memset(got, 0, MOST * sizeof *got);
        assert_int_equal(g->shift(g->context, all, got, n, by), SMP_OK);
        assert_int_equal(g->shifted(g->context), SMP_OK);
        for (int64_t e = 0; e < n; e++)
            assert_true(got[e] == value_of((rank + RANKS - by) % RANKS, e, round));
    }
    free(all);
    free(got);
    free(own);
}

static void test_calls(void **state)
{
    (void)state;
    smp_comm comm;
    smp__op_group g;
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){20, 600, 600}), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, MOST, NULL, NULL), SMP_OK);
    assert_int_equal(g.group.index, rank);
    for (int n = 1; n <= MOST / RANKS; n += n < 9 ? 1 : 60)
        check_round(&g.group, n, n);
    smp__op_group_close(&g);
    smp__comm_close(&comm);
}

/* Who looks while a shift is under way has all of it before it waits. */
static void test_a_look_moves_a_shift(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    smp_comm comm;
    smp__op_group g;
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){20, 600, 600}), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, MOST, NULL, NULL), SMP_OK);
    float *own = floats(LONG), *got = floats(LONG);
    for (int64_t e = 0; e < LONG; e++) {
        own[e] = value_of(rank, e, 1);
        got[e] = 2; /* none is so large */
    }
    assert_int_equal(g.group.shift(g.group.context, own, got, LONG, 1), SMP_OK);
    const double end_s = MPI_Wtime() + 20;
    const volatile float *first = got, *last = got + LONG - 1;
    while ((*first == 2 || *last == 2) && MPI_Wtime() < end_s)
        assert_int_equal(g.group.look(g.group.context), SMP_OK);
    assert_true(*first != 2 && *last != 2);
    assert_int_equal(g.group.shifted(g.group.context), SMP_OK);
    for (int64_t e = 0; e < LONG; e++)
        assert_true(got[e] == value_of((rank + RANKS - 1) % RANKS, e, 1));
    assert_int_equal(g.group.look(g.group.context), SMP_OK); /* there is nothing left */
    free(own);
    free(got);
    smp__op_group_close(&g);
    smp__comm_close(&comm);
}

static void check_value(smp_group_call call, const float *got, int64_t e, int64_t n)
{
    const int64_t from = e / n;
    if (call == SMP_GROUP_ALL_REDUCE || call == SMP_GROUP_REDUCE_SCATTER)
        assert_true(got[e] == sum_of(call == SMP_GROUP_ALL_REDUCE ? e : rank * n + e, (int)call));
    else
        assert_true(got[e] == value_of((int)from,
                                       call == SMP_GROUP_ALL_GATHER ? e % n : rank * n + e % n,
                                       (int)call));
}

/* Every call begun, looked at for a while by some, and finished; one that is begun while another is
 * under way comes after it. */
static void test_halves(void **state)
{
    enum { CALLS = 4, N = 50, ROUNDS = 40 };
    (void)state;
    smp_comm comm;
    smp__op_group g;
    float from[CALLS][N * RANKS], to[CALLS][N * RANKS];
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){20, 600, 600}), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, MOST, NULL, NULL), SMP_OK);
    for (int round = 0; round < ROUNDS; round++) {
        for (int c = 0; c < CALLS; c++) {
            for (int64_t e = 0; e < N * RANKS; e++)
                from[c][e] = value_of(rank, e, c);
            memcpy(to[c], from[c], sizeof to[c]);
            assert_int_equal(g.group.begin(g.group.context, (smp_group_call)c, from[c], to[c], N),
                             SMP_OK);
            for (int look = 0; look < (rank * 7 + round) % 12; look++)
                assert_int_equal(g.group.look(g.group.context), SMP_OK);
            if (round % 2)
                assert_int_equal(g.group.finish(g.group.context), SMP_OK);
        }
        assert_int_equal(g.group.finish(g.group.context), SMP_OK);
        assert_int_equal(g.group.finish(g.group.context), SMP_OK); /* nothing is under way */
        for (int c = 0; c < CALLS; c++)
            for (int64_t e = 0;
                 e < (c == SMP_GROUP_ALL_GATHER || c == SMP_GROUP_ALL_TO_ALL ? N * RANKS : N); e++)
                check_value((smp_group_call)c, to[c], e, N);
    }
    smp__op_group_close(&g);
    smp__comm_close(&comm);
}

/* On a slow link both halves of a sum go by while others compute: nothing is left to finish. */
static void test_hidden(void **state)
{
    (void)state;
    smp_comm comm;
    smp__op_group g;
    const double half_s = 0.03;
    char rate[32];
    float values[MOST];
    snprintf(rate, sizeof rate, "%g", (RANKS - 1) * (MOST / RANKS) * sizeof(float) / half_s);
    setenv("SMP_THROTTLE", rate, 1);
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){20, 600, 600}), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, MOST, NULL, NULL), SMP_OK);
    unsetenv("SMP_THROTTLE");
    for (int64_t e = 0; e < MOST; e++)
        values[e] = value_of(rank, e, 0);
    const double begin_s = smp_clock_s();
    assert_int_equal(g.group.begin(g.group.context, SMP_GROUP_ALL_REDUCE, NULL, values, MOST),
                     SMP_OK);
    while (g.half != SMP__NO_HALF && smp_clock_s() < begin_s + 10) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        assert_int_equal(smp__op_group_look(&g), SMP_OK);
    }
    assert_int_equal(g.half, SMP__NO_HALF);
    assert_true(smp_clock_s() - begin_s >= 2 * half_s);
    for (int64_t e = 0; e < MOST; e++)
        assert_true(values[e] == sum_of(e, 0));
    const double whole_s = smp_clock_s();
    assert_int_equal(g.group.all_reduce(g.group.context, values, MOST), SMP_OK);
    assert_true(smp_clock_s() - whole_s >= 2 * half_s);
    smp__op_group_close(&g);
    smp__comm_close(&comm);
}

static void choose(const smp_graph *graph, smp_split_choice *choice, const char *end,
                   const char *rule, int dim, int blocks)
{
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op *op = &graph->op[o];
        size_t length = strlen(op->name);
        int8_t r = 0;
        if (length < strlen(end) || strcmp(op->name + length - strlen(end), end) != 0)
            continue;
        while (strcmp(op->kind->split[r].name, rule) != 0)
            r++;
        choice[o] = (smp_split_choice){r, (int8_t)dim, (int8_t)blocks};
    }
}

typedef struct rule {
    const char *end, *rule;
    int dim, blocks;
} rule;

/* Megatron-LM's, and all by positions, with what travels: keys and values around the ring. */
static const rule BY_HEADS[] = {{"wte", "rows", 0, 1},           {"wpe", "positions", 0, 1},
                                {".ln_1", "positions", 0, 1},    {".attn.qkv", "columns", 0, 3},
                                {".attn", "packed heads", 0, 1}, {".attn.proj", "rows", 0, 1},
                                {".res_1", "elements", 0, 1},    {".ln_2", "positions", 0, 1},
                                {".mlp.fc", "columns", 0, 1},    {".mlp.gelu", "elements", 1, 1},
                                {".mlp.proj", "rows", 0, 1},     {".res_2", "elements", 0, 1},
                                {"ln_f", "positions", 0, 1},     {"lm_head", "columns", 0, 1},
                                {"loss", "classes", 0, 1},       {0}};
static const rule BY_POSITIONS[] = {{"wpe", "positions", 0, 1},
                                    {".ln_1", "positions", 0, 1},
                                    {".attn.qkv", "positions", 0, 1},
                                    {".attn", "packed ring", 0, 1},
                                    {".attn.proj", "positions", 0, 1},
                                    {".res_1", "elements", 0, 1},
                                    {".ln_2", "positions", 0, 1},
                                    {".mlp.fc", "positions", 0, 1},
                                    {".mlp.gelu", "elements", 0, 1},
                                    {".mlp.proj", "positions", 0, 1},
                                    {".res_2", "elements", 0, 1},
                                    {"ln_f", "positions", 0, 1},
                                    {0}};
/* A mixture's: tokens to their experts and back. */
static const rule BY_EXPERTS[] = {{".norm_2", "positions", 0, 1},  {".router", "positions", 0, 1},
                                  {".balance", "positions", 0, 1}, {".dispatch", "positions", 0, 1},
                                  {".gate", "experts", 0, 1},      {".up", "experts", 0, 1},
                                  {".silu", "elements", 0, 1},     {".gated", "elements", 0, 1},
                                  {".down", "experts", 0, 1},      {".combine", "positions", 0, 1},
                                  {".res_2", "elements", 0, 1},    {0}};

static void choose_all(const smp_graph *graph, const rule *rules, smp_split_choice *choice)
{
    for (int32_t o = 0; o < graph->n_op; o++)
        choice[o] = (smp_split_choice){-1, 0, 1};
    for (size_t i = 0; rules[i].end; i++)
        choose(graph, choice, rules[i].end, rules[i].rule, rules[i].dim, rules[i].blocks);
}

static float *gradient_of(const device *d, int32_t param)
{
    const smp_param *p = &d->graph->param[param];
    float *sum = floats(p->elements), *summands = floats(p->elements);
    for (int32_t u = p->use_begin; u < p->use_end; u++) {
        const smp_use *use = &d->graph->use[u];
        bool shared = d->graph->op[use->op].summands >> use->slot & 1;
        for (int64_t e = 0; e < p->elements; e++)
            (shared ? summands : sum)[e] += d->wgrad[u][e];
    }
    if (d->used)
        MPI_Allreduce(MPI_IN_PLACE, summands, (int)p->elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int64_t e = 0; e < p->elements; e++)
        sum[e] += summands[e];
    free(summands);
    return sum;
}

static void compare(const device *whole, const device *part)
{
    for (int32_t p = 0; p < part->graph->n_param; p++) {
        const smp_param *own = &part->graph->param[p];
        float *wanted = gradient_of(whole, smp_graph_find_param(whole->graph, own->name));
        float *got = gradient_of(part, p);
        double largest = 1e-3;
        for (int64_t e = 0; e < own->elements; e++)
            largest = fmax(largest, fabs((double)wanted[whole_index(&own->shape, own->part, e)]));
        for (int64_t e = 0; e < own->elements; e++) {
            double error = (double)got[e] - (double)wanted[whole_index(&own->shape, own->part, e)];
            if (fabs(error) > 1e-5 * largest)
                fail_msg("rank %d, %s: %g off at %lld, largest %g", rank, own->name, error,
                         (long long)e, largest);
        }
        free(wanted);
        free(got);
    }
}

static int64_t largest_tensor(const smp_graph *graph)
{
    int64_t most = 0;
    for (int32_t t = 0; t < graph->n_tensor; t++)
        if (smp_tensor_bytes(graph, t, BATCH) / 4 > most)
            most = smp_tensor_bytes(graph, t, BATCH) / 4;
    return most;
}

static void check_model(const char *name, const rule *rules)
{
    char path[4096];
    smp_comm comm;
    smp__op_group g;
    smp_graph *graph, *part;
    device whole, own;
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){60, 1800, 1800}), SMP_OK);
    snprintf(path, sizeof path, "%s/examples/%s.yaml", SMP_SOURCE_DIR, name);
    assert_int_equal(smp_graph_read(path, &graph), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, largest_tensor(graph), NULL, NULL),
                     SMP_OK);
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    choose_all(graph, rules, choice);
    assert_int_equal(smp_graph_split(graph, RANKS, rank, choice, &part), SMP_OK);
    device_open(&whole, graph, BATCH, NULL, 0);
    device_open(&own, part, BATCH, NULL, 0);
    own.used = &g.group;
    device_fill(&whole);
    device_fill(&own);
    device_run(&whole);
    device_run(&own);
    assert_int_equal(whole.status, SMP_OK);
    assert_int_equal(own.status, SMP_OK);
    assert_true(fabs((double)own.value[part->loss][0] - (double)whole.value[graph->loss][0]) <
                1e-5 * fabs((double)whole.value[graph->loss][0]));
    compare(&whole, &own);
    device_close(&whole);
    device_close(&own);
    free(choice);
    smp_graph_destroy(part);
    smp_graph_destroy(graph);
    smp__op_group_close(&g);
    smp__comm_close(&comm);
}

static void test_four_processes(void **state)
{
    (void)state;
    check_model("gpt-tiny", BY_HEADS);
    check_model("gpt-tiny", BY_POSITIONS);
    check_model("moe-tiny", BY_EXPERTS);
}

/* It comes in the end, so that MPI can be left. */
static void test_one_is_late(void **state)
{
    (void)state;
    static smp_comm comm; /* MPI may use it until the end */
    static smp__op_group g;
    static float values[RANKS], others[RANKS];
    MPI_Request request;
    assert_int_equal(smp__comm_open(&comm, (smp_comm_limits){0.5, 15, 15}), SMP_OK);
    assert_int_equal(smp__op_group_open(&g, &comm, comm.world, RANKS, NULL, NULL), SMP_OK);
    if (rank == LATE) {
        nanosleep(&(struct timespec){3, 0}, NULL);
        MPI_Ialltoall(values, 1, MPI_FLOAT, others, 1, MPI_FLOAT, comm.world, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        return;
    }
    smp_status status = g.group.all_reduce(g.group.context, values, RANKS);
    assert_int_equal(status, SMP_ERR_PEER);
    if (!smp__comm_was_told(status)) {
        assert_non_null(strstr(smp_last_error(), "the other 3 devices that compute its operators"));
        assert_non_null(strstr(smp_last_error(), "rank 2: no answer"));
    }
    MPI_Wait(&g.request, MPI_STATUS_IGNORE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_four_processes),
        cmocka_unit_test(test_a_look_moves_a_shift),
        cmocka_unit_test(test_one_is_late),
    };
    setenv("CMOCKA_TEST_ABORT", "1",
           1); /* else the other ranks would wait for the one that failed */
    assert_int_equal(smp__mpi_open(), SMP_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures > 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
