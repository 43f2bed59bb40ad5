/* batchnorm with `sync` over replicas: a job of R replicas is one pipeline whose micro-batches hold
 * those of all replicas, to rounding; replicas hold the same bits, whatever the stages and the
 * schedule are; short batches count the samples that are there; who does not come to a sum is
 * named. On four ranks. */
#include <time.h>

#include "exec/step/cost_samples.h"
#include "exec/step/stepping.h"
#include "tests/exec/changed_plan.h"
#include "tests/mpi/ranks.h"

enum { FULL = 32, C = 4, SPACE = 6, GOAL = 3, STEPS = 4 };

static const double momentum = 0.25;

#define MODEL(sync)                                                                                \
    "smp: 1\nname: joint\n"                                                                        \
    "inputs:\n"                                                                                    \
    "  x: {dtype: float32, shape: [4, 2, 3]}\n"                                                    \
    "  goal: {dtype: float32, shape: [3]}\n"                                                       \
    "ops:\n"                                                                                       \
    "  - {op: batchnorm, name: first, in: x, out: y, momentum: 0.25" sync "}\n"                    \
    "  - {op: flatten, name: flat, in: y, out: y}\n"                                               \
    "  - {op: linear, name: a, in: y, out: z, features: 24}\n"                                     \
    "  - {op: batchnorm, name: second, in: z, out: z" sync "}\n"                                   \
    "  - {op: gelu, name: b, in: z, out: z}\n"                                                     \
    "  - {op: add, name: c, in: [y, z], out: z}\n"                                                 \
    "  - {op: batchnorm, name: third, in: z, out: z" sync "}\n"                                    \
    "  - {op: linear, name: d, in: z, out: z, features: 3}\n"                                      \
    "  - {op: mse, name: loss, in: [z, goal], out: loss}\n"                                        \
    "loss: loss\n"

static const char joint_model[] = MODEL(", sync: true"), plain_model[] = MODEL("");

static float x[FULL * C * SPACE], goal[FULL * GOAL];

/* Sample `place` of what all replicas are given is number `sample` of the data. */
static void set_sample(int place, int sample, int step)
{
    for (int i = 0; i < C * SPACE; i++)
        x[place * C * SPACE + i] =
            (float)(i / SPACE + 1) * (float)sin(1.3 * (sample * C * SPACE + i) + 0.7 * step) +
            (float)step;
    for (int i = 0; i < GOAL; i++)
        goal[place * GOAL + i] = (float)cos(0.9 * (sample * GOAL + i) + step);
}

/* The joint micro-batches of a job of c.ddp replicas, one behind the other, are the data. */
static void make_batch(cut c, int step)
{
    for (int r = 0; r < c.ddp; r++)
        for (int mb = 0; mb < c.microbatches; mb++)
            for (int i = 0; i < c.batch; i++)
                set_sample((r * c.microbatches + mb) * c.batch + i, (mb * c.ddp + r) * c.batch + i,
                           step);
}

static smp *start(const char *model, cut c, const char *schedule)
{
    smp_options options = options_of(model_path(model), c);
    options.optimizer.lr = 0.02f;
    if (schedule)
        options.planning.schedule = schedule;
    return open_job(&options);
}

static double call(smp *job, int64_t samples, bool training)
{
    smp_step_result result;
    const int64_t first = smp_samples_before(job);
    const void *inputs[] = {x + first * C * SPACE, goal + first * GOAL};
    must(training ? smp_step_short(job, inputs, samples, &result)
                  : smp_evaluate_short(job, inputs, samples, &result));
    assert_int_equal(result.skipped, 0);
    return result.loss;
}

/* Losses of the steps, then of an evaluation, and the weights. Collective. */
typedef struct outcome {
    double loss[STEPS + 1];
    float *weight;
    int64_t n;
    uint64_t hash;
} outcome;

static outcome train_job(smp *job, cut c)
{
    outcome o = {0};
    for (int k = 0; k <= STEPS; k++) {
        make_batch(c, k);
        o.loss[k] = call(job, (int64_t)c.ddp * c.microbatches * c.batch, k < STEPS);
    }
    for (int i = 0; i < smp_weight_count(job); i++)
        o.n += smp_weight_elements(job, i);
    o.weight = malloc((size_t)o.n * sizeof(float));
    assert_non_null(o.weight);
    int64_t at = 0;
    for (int i = 0; i < smp_weight_count(job); at += smp_weight_elements(job, i++))
        must(smp_weight_get(job, smp_weight_name(job, i), o.weight + at,
                            smp_weight_elements(job, i)));
    o.hash = weights_hash(job); /* that of every replica */
    smp_finalize(job);
    return o;
}

static outcome train(const char *model, cut c, const char *schedule)
{
    return train_job(start(model, c, schedule), c);
}

/* All of the forward, or some ops of it, runs again; some backwards are split. */
static outcome train_again(cut c, int ops_percent, int split_percent)
{
    const plan_changes changes = {.seed = 3,
                                  .recompute_percent = 100,
                                  .recompute_ops_percent = ops_percent,
                                  .split_percent = split_percent,
                                  .whole_percent = 30,
                                  .soon_percent = 50};
    smp_options options = options_of(model_path(joint_model), c);
    smp_graph *graph = NULL;
    char path[160];
    snprintf(path, sizeof path, "%s/plan.yaml", ranks_folder);
    options.optimizer.lr = 0.02f;
    must(smp_graph_read(options.model, &graph));
    if (world_rank == 0)
        must(changed_plan_write(&options, world_size, graph, changes, path));
    smp_graph_destroy(graph);
    MPI_Barrier(MPI_COMM_WORLD);
    options.plan = path;
    options.model = NULL;
    smp *job = open_job(&options);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(path);
    return train_job(job, c);
}

static void test_joint_statistics_are_of_all_replicas(void **state)
{
    static const cut cuts[][2] = {{{2, 2, 4, 4, 1}, {4, 1, 4, 8, 1}},
                                  {{1, 4, 2, 4, 1}, {4, 1, 2, 16, 1}}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        outcome joint = train(joint_model, cuts[i][0], NULL);
        outcome whole = train(plain_model, cuts[i][1], NULL);
        outcome apart = train(plain_model, cuts[i][0], NULL);
        for (int k = 0; k <= STEPS; k++)
            if (!(fabs(joint.loss[k] - whole.loss[k]) < 2e-5 * whole.loss[k]))
                fail_msg("ddp %d, loss %d: %.9g, expected %.9g", cuts[i][0].ddp, k, joint.loss[k],
                         whole.loss[k]);
        for (int64_t k = 0; k < whole.n; k++)
            if (!(fabs((double)joint.weight[k] - (double)whole.weight[k]) <
                  2e-5 * (1 + fabs((double)whole.weight[k]))))
                fail_msg("ddp %d, weight %d: %.9g, expected %.9g", cuts[i][0].ddp, (int)k,
                         (double)joint.weight[k], (double)whole.weight[k]);
        assert_true(fabs(apart.loss[1] - whole.loss[1]) > 1e-3 * whole.loss[1]);
        free(joint.weight);
        free(whole.weight);
        free(apart.weight);
    }
}

static void test_joint_statistics_have_the_same_bits(void **state)
{
    static const char *const schedules[] = {"1f1b", "gpipe", "zero-bubble", "interleaved"};
    uint64_t hash = 0;
    (void)state;
    for (int i = 0; i < 4; i++) {
        outcome o = train(joint_model, (cut){2, 2, 4, 4, i == 3 ? 2 : 1}, schedules[i]);
        hash = i == 0 ? o.hash : hash;
        if (o.hash != hash)
            fail_msg("%s: other bits than %s", schedules[i], schedules[0]);
        free(o.weight);
    }
    for (int i = 0; i < 4; i++) {
        outcome o = train_again((cut){2, 2, 4, 4, 1 + i % 2}, i < 2 ? 100 : 40, i < 2 ? 0 : 100);
        if (o.hash != hash)
            fail_msg("with recomputation, %d: other bits than %s", i, schedules[0]);
        free(o.weight);
    }
}

/* The first statistics are those of the input: what PyTorch makes of the joint micro-batches. */
static void expect_statistics(cut c, int64_t samples, int channel, double *mean, double *variance)
{
    for (int mb = 0; mb < c.microbatches; mb++) {
        double n = 0, sum = 0, squares = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int r = 0; r < c.ddp; r++)
                for (int i = 0; i < c.batch; i++) {
                    const int place = (r * c.microbatches + mb) * c.batch + i;
                    for (int k = 0; k < SPACE && place < samples; k++) {
                        const double value = (double)x[(place * C + channel) * SPACE + k];
                        n += pass == 0;
                        if (pass == 0)
                            sum += value;
                        else
                            squares += pow(value - sum / n, 2);
                    }
                }
        if (n == 0)
            continue;
        *mean = (1 - momentum) * *mean + momentum * sum / n;
        *variance = (1 - momentum) * *variance + momentum * squares / (n - 1);
    }
}

static void test_joint_statistics_of_short_batches(void **state)
{
    static const cut cuts[] = {{2, 2, 2, 4, 1}, {1, 4, 2, 2, 1}};
    static const int64_t given[] = {16, 11, 1, 8, 3};
    (void)state;
    for (int i = 0; i < 2; i++) {
        double mean[C] = {0}, variance[C] = {1, 1, 1, 1};
        smp *job = start(joint_model, cuts[i], NULL);
        for (int step = 0; step < 5; step++) {
            float means[C], variances[C];
            make_batch(cuts[i], step);
            call(job, given[step], true);
            must(smp_weight_get(job, "first.running_mean", means, C));
            must(smp_weight_get(job, "first.running_var", variances, C));
            for (int k = 0; k < C; k++) {
                expect_statistics(cuts[i], given[step], k, &mean[k], &variance[k]);
                if (!(fabs((double)means[k] - mean[k]) < 2e-6 * (1 + fabs(mean[k])) &&
                      fabs((double)variances[k] - variance[k]) < 2e-6 * (1 + variance[k])))
                    fail_msg("ddp %d, step %d: %.9g and %.9g, expected %.9g and %.9g", cuts[i].ddp,
                             step, (double)means[k], (double)variances[k], mean[k], variance[k]);
            }
            weights_hash(job);
        }
        smp_finalize(job);
    }
}

/* A replica that is late for its sums makes no operator of the others slow, in what they measure by
 * the clock. */
static void test_joint_statistics_are_no_cost_of_operators(void **state)
{
    enum { LATE = 2, FORWARD_OF_FIRST = 0 };
    const cut c = {1, 4, 2, 4, 1};
    (void)state;
    smp_options options = options_of(model_path(joint_model), c);
    options.runtime.record_costs = 1;
    smp *job = open_job(&options);
    job->comm->crowded = false;
    for (int step = 0; step < 3; step++) {
        make_batch(c, step);
        if (world_rank == LATE && step == 2)
            nanosleep(&(struct timespec){0, 500000000}, NULL);
        call(job, FULL, true);
    }
    const double us = job->stepping->cost_samples->us[FORWARD_OF_FIRST * SMP__COST_SAMPLES + 2];
    if (!(us > 0 && us < 250e3))
        fail_msg("rank %d: 'first' took %g us", world_rank, us);
    smp_finalize(job);
}

/* Replica 2 does not come: the others end, and say which sum they wait in, and for whom. */
static void test_joint_statistics_name_who_is_missing(void **state)
{
    enum { SILENT = 2 };
    smp_step_result result;
    (void)state;
    smp_options options = options_of(model_path(joint_model), (cut){1, 4, 2, 4, 1});
    options.runtime.timeout_s = 0.1;
    smp *job = open_job(&options);
    const int64_t first = smp_samples_before(job);
    const void *inputs[] = {x + first * C * SPACE, goal + first * GOAL};
    int told = 0, all = 0;
    if (world_rank != SILENT) {
        assert_int_equal(smp_step(job, inputs, &result), SMP_ERR_PEER);
        const char *text = smp_last_error();
        if (!job->comm->told)
            told = strstr(text, "F0") && strstr(text, "op 'first' (batchnorm)") &&
                   strstr(text, "; rank 2: no answer");
        if (!job->comm->told && !told)
            fprintf(stderr, "rank %d: %s\n", world_rank, text);
    }
    MPI_Allreduce(&told, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    assert_int_equal(all, 1);
    if (world_rank == SILENT) /* it learns that the job is over */
        assert_int_equal(smp_step(job, inputs, &result), SMP_ERR_PEER);
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint_statistics_are_of_all_replicas),
        cmocka_unit_test(test_joint_statistics_have_the_same_bits),
        cmocka_unit_test(test_joint_statistics_of_short_batches),
        cmocka_unit_test(test_joint_statistics_are_no_cost_of_operators),
        cmocka_unit_test(test_joint_statistics_name_who_is_missing),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
