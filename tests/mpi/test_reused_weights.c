/* Weights that one stage uses twice, stages of one rank and stages of several ranks share, under
 * replicas and chunks: every gradient is the sum over all uses and the mean over all replicas, so
 * that replicas stay the same to the bit. On four ranks. */
#include "tests/mpi/ranks.h"

enum { SAMPLES = 8, STAGES = 4, T = 3, VOCABULARY = 17, STEPS = 3 };

static int32_t tokens[SAMPLES * T], targets[SAMPLES * T];

/* Four stages. fc0 is used twice in stage 0, fc1 in stages 1 and 2, fc2 in 0 and twice in 2, fc3
 * twice in 3; the table in 0, 2 and 3; the biases of fc1 and of fc1b are one; ln2 has those of ln1,
 * by way of `both`, both of whose weights are one. Sizes that are no multiple of the reduction's
 * unit. */
static const char model[] =
    "smp: 1\n"
    "name: reused\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [3]}\n"
    "  targets: {dtype: int32, shape: [3]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 17, features: 9, init_std: 1, "
    "stage: 0}\n"
    "  - {op: linear, name: fc0, in: x, out: x, features: 9, stage: 0}\n"
    "  - {op: linear, name: fc0b, in: x, out: x, features: 9, weight: fc0.weight, stage: 0}\n"
    "  - {op: linear, name: fc2, in: x, out: x, features: 9, stage: 0}\n"
    "  - {op: gelu, name: act0, in: x, out: x, stage: 0}\n"
    "  - {op: linear, name: fc1, in: x, out: x, features: 9, stage: 1}\n"
    "  - {op: gelu, name: act1, in: x, out: x, stage: 1}\n"
    "  - {op: layernorm, name: ln1, in: x, out: x, stage: 1}\n"
    "  - {op: linear, name: fc1b, in: x, out: x, features: 9, weight: fc1.weight, "
    "tie: {bias: fc1.bias}, stage: 2}\n"
    "  - {op: embedding, name: wte2, in: tokens, out: e, rows: 17, features: 9, "
    "tie: {weight: wte.weight}, stage: 2}\n"
    "  - {op: add, name: sum, in: [x, e], out: x, stage: 2}\n"
    "  - {op: layernorm, name: both, in: x, out: x, "
    "tie: {weight: ln1.weight, bias: ln1.weight}, stage: 2}\n"
    "  - {op: linear, name: fc2b, in: x, out: x, features: 9, weight: fc2.weight, stage: 2}\n"
    "  - {op: gelu, name: act2, in: x, out: x, stage: 2}\n"
    "  - {op: linear, name: fc2c, in: x, out: x, features: 9, weight: fc2.weight, stage: 2}\n"
    "  - {op: linear, name: fc3, in: x, out: x, features: 9, stage: 3}\n"
    "  - {op: gelu, name: act3, in: x, out: x, stage: 3}\n"
    "  - {op: linear, name: fc3b, in: x, out: x, features: 9, weight: fc3.weight, stage: 3}\n"
    "  - {op: layernorm, name: ln2, in: x, out: x, tie: {weight: both.bias, bias: ln1.bias}, "
    "stage: 3}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 17, weight: wte2.weight, stage: 3}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss, stage: 3}\n"
    "loss: loss\n";

static void make_batch(int step)
{
    for (int i = 0; i < SAMPLES * T; i++) {
        tokens[i] = (7 * i + 3 * step) % VOCABULARY;
        targets[i] = (11 * i * i + 5 * step) % VOCABULARY;
    }
}

static void check(int ranks, int ddp, const char *schedule)
{
    cut c = {ranks, ddp, SAMPLES / ddp, 1, STAGES / ranks};
    smp_options options = options_of(model_path(model), c);
    options.planning.schedule = schedule;
    smp_graph *graph = NULL;
    sequential *reference = NULL;
    must(smp_graph_read(options.model, &graph));
    smp *job = open_job(&options);
    must(sequential_create(graph, 1, SAMPLES, &options, &reference));
    walk_weights(job, reference, true);
    for (int step = 0; step < STEPS; step++) {
        make_batch(step);
        int64_t first = smp_samples_before(job) * T;
        const void *own[] = {tokens + first, targets + first};
        const void *const all[] = {tokens, targets};
        smp_step_result result;
        double loss;
        must(smp_step(job, own, &result));
        must(sequential_step(reference, all, &loss));
        assert_true(fabs(result.loss - loss) < 1e-5);
        weights_hash(job);
    }
    double difference = walk_weights(job, reference, false);
    if (difference > (ddp == 1 ? 0.0 : 1e-5))
        fail_msg("%d ranks, ddp %d, %s: weights differ by %g", ranks, ddp, schedule, difference);
    sequential_destroy(reference);
    smp_finalize(job);
    smp_graph_destroy(graph);
}

static void test_reused_weights_in_chunks_of_replicas(void **state)
{
    (void)state;
    check(2, 2, "interleaved");
    check(2, 2, "simple");
}

static void test_reused_weights_one_rank_each(void **state)
{
    (void)state;
    check(1, 4, "interleaved");
}

static void test_reused_weights_one_replica(void **state)
{
    (void)state;
    check(4, 1, "1f1b");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reused_weights_in_chunks_of_replicas),
        cmocka_unit_test(test_reused_weights_one_rank_each),
        cmocka_unit_test(test_reused_weights_one_replica),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
