/* A program that lets the library plan for groups of devices: four ranks train what a sequential
 * trainer does, whatever the groups, in the memory that the plan says. */
#include "schedule/plan/plan.h"
#include "tests/mpi/ranks.h"

enum { T = 64, VOCABULARY = 16, BATCH = 8, STEPS = 4 };

static const char model[] =
    "smp: 1\n"
    "name: tiny\n"
    "let: {T: 64, d: 64}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  targets: {dtype: int32, shape: [T]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 16, features: d, init_std: 1}\n"
    "  - {op: layernorm, name: ln, in: x, out: a}\n"
    "  - {op: linear, name: qkv, in: a, out: a, features: 3*d}\n"
    "  - {op: attention, name: attn, in: a, out: a, heads: 4, causal: true}\n"
    "  - {op: linear, name: proj, in: a, out: a, features: d}\n"
    "  - {op: add, name: res, in: [x, a], out: x}\n"
    "  - {op: linear, name: fc, in: x, out: x, features: 4*d}\n"
    "  - {op: gelu, name: act, in: x, out: x}\n"
    "  - {op: linear, name: out, in: x, out: x, features: d}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 16, bias: false, weight: wte.weight}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}\n"
    "loss: loss\n";

static const char *const megatron[] = {"*:whole",   "qkv:columns/3", "attn:packed heads",
                                       "proj:rows", "fc:columns",    "act:elements@1",
                                       "out:rows"};

static smp_options tensor_options(int tensor, int stages, int ddp)
{
    smp_options options =
        options_of(model_path(model),
                   (cut){.stages = stages, .ddp = ddp, .microbatches = 4 / ddp, .batch = 2});
    options.planning.chunks = 1;
    options.planning.tensor = tensor;
    return options;
}

/* Its own part of a global batch. */
static void train_step(smp *job, sequential *reference, int step)
{
    int32_t tokens[BATCH * T], targets[BATCH * T];
    smp_step_result result;
    double expected;
    for (int i = 0; i < BATCH * T; i++) {
        tokens[i] = (7 * i + 3 * step + i / 5) % VOCABULARY;
        targets[i] = (i + step) % 6 == 0 ? -1 : (5 * i + step * 11) % VOCABULARY;
    }
    const int64_t at = smp_samples_before(job) * T;
    must(smp_step(job, (const void *const[]){tokens + at, targets + at}, &result));
    must(sequential_step(reference, (const void *const[]){tokens, targets}, &expected));
    if (!(fabs(result.loss - expected) <= 1e-6 * expected))
        fail_msg("step %d: loss %.9g, expected %.9g", step, result.loss, expected);
}

/* Every device of a group reserves what the plan says, which is made for adamw. */
static void check_memory(smp_options options)
{
    options.optimizer.name = "adamw";
    smp *job = open_job(&options);
    assert_int_equal(job->memory->arena_bytes,
                     job->plan->predicted.peak_bytes[smp_rank(job, SMP_PIPELINE)]);
    smp_finalize(job);
}

/* Trains it beside the sequential trainer; how many ops of the plan are split. */
static int32_t check_options(const smp_options *options, int tensor)
{
    smp_graph *graph = NULL;
    sequential *reference = NULL;
    check_memory(*options);
    must(smp_graph_read(options->model, &graph));
    must(sequential_create(graph, 2, BATCH / 2, options, &reference));
    smp *job = open_job(options);
    assert_int_equal(smp_size(job, SMP_TENSOR), tensor);
    assert_int_equal(smp_rank(job, SMP_TENSOR), world_rank % tensor);
    assert_int_equal(smp_size(job, SMP_PIPELINE) * smp_size(job, SMP_DDP) * tensor, world_size);
    const int32_t n_split = job->plan->splitting.n_entry;
    walk_weights(job, reference, true);
    for (int step = 0; step < STEPS; step++)
        train_step(job, reference, step);
    const double difference = walk_weights(job, reference, false);
    if (!(difference < 2e-6))
        fail_msg("weights differ by %g", difference);
    smp_finalize(job);
    sequential_destroy(reference);
    smp_graph_destroy(graph);
    return n_split;
}

/* Every op of this model is worth it over two devices. */
static void test_tensor_options_chosen(void **state)
{
    static const int shape[][2] = {{2, 1}, {1, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        smp_options options = tensor_options(2, shape[i][0], shape[i][1]);
        assert_true(check_options(&options, 2) > 4);
    }
}

static void test_tensor_options_split_as_told(void **state)
{
    (void)state;
    smp_options options = tensor_options(4, 1, 1);
    options.planning.split = megatron;
    options.planning.n_split = sizeof megatron / sizeof *megatron;
    assert_int_equal(check_options(&options, 4), 6);
    options = tensor_options(2, 1, 2);
    options.planning.split = megatron;
    options.planning.n_split = sizeof megatron / sizeof *megatron;
    options.planning.shard = 2;
    options.planning.shard_what = SMP_SHARD_WEIGHTS;
    options.planning.schedule = "breadth-first";
    options.planning.chunks = 2;
    assert_int_equal(check_options(&options, 2), 6);
    options.planning.split = (const char *const[]){"fc:whole", "*:whole", "out:columns"};
    options.planning.n_split = 3;
    assert_int_equal(check_options(&options, 2), 1);
}

/* As if there were nothing of the kind, and the best of all. */
static void test_tensor_options_one_and_any(void **state)
{
    (void)state;
    assert_int_equal(smp_options_default().planning.tensor, SMP_DEFAULT);
    smp_options options = tensor_options(1, 2, 2);
    assert_int_equal(check_options(&options, 1), 0);
    options.planning.tensor = 0;
    assert_int_equal(check_options(&options, 1), 0); /* four ranks are 2 x 2 groups of one */
}

/* The tied embedding goes by its name, whoever computes it. */
static void test_tensor_options_frozen(void **state)
{
    (void)state;
    for (int tensor = 1; tensor <= 2; tensor++) {
        smp_options options = tensor_options(tensor, 2, 2 / tensor);
        uint64_t before, after;
        int32_t n_frozen = 0;
        options.planning.freeze = (const char *const[]){"wte.weight", "qkv.*"};
        options.planning.n_freeze = 2;
        check_memory(options);
        smp *job = open_job(&options);
        for (int32_t i = 0; i < job->graph->n_param; i++)
            n_frozen += job->graph->param[i].frozen;
        assert_int_equal(n_frozen, 3);
        must(smp_weights_hash(job, &before));
        int32_t tokens[BATCH * T] = {0}, targets[BATCH * T] = {0};
        smp_step_result result;
        must(smp_step(job, (const void *const[]){tokens, targets}, &result));
        must(smp_weights_hash(job, &after));
        assert_true(before != after);
        smp_finalize(job);
        options.planning.freeze = (const char *const[]){"*"};
        options.planning.n_freeze = 1;
        assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "no weight that the loss depends on"));
        options.planning.freeze = NULL;
        assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "n_freeze: got 1 without as many in freeze"));
    }
}

static void test_tensor_options_that_cannot_be(void **state)
{
    static const char *const unknown[] = {"nowhere:rows"}, *const no_rule[] = {"fc"};
    const struct {
        int tensor, stages, n_split;
        const char *const *split;
        const char *message;
    } bad[] = {
        {3, 1, 0, NULL, "tensor: got 3, expected a divisor of the 4 devices of a node"},
        {2, 4, 0, NULL, "tensor: 4 devices are 2 groups of 2, which cannot hold 4 stages"},
        {-2, 1, 0, NULL, "planning.tensor: got -2"},
        {1, 1, 1, unknown, "split: nothing is split with --tensor 1"},
        {2, 1, 1, unknown, "no op of model 'tiny' is 'nowhere'"},
        {2, 1, 1, no_rule, "split: got 'fc', expected PATTERN:RULE"},
        {2, 1, 1, NULL, "n_split: got 1"},
        {2, 1, -1, unknown, "n_split: got -1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        smp *job = NULL;
        smp_options options = tensor_options(bad[i].tensor, bad[i].stages, 1);
        options.planning.split = bad[i].split;
        options.planning.n_split = bad[i].n_split;
        assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
        assert_null(job);
        if (!strstr(smp_last_error(), bad[i].message))
            fail_msg("got '%s', expected '%s'", smp_last_error(), bad[i].message);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_options_chosen),
        cmocka_unit_test(test_tensor_options_split_as_told),
        cmocka_unit_test(test_tensor_options_one_and_any),
        cmocka_unit_test(test_tensor_options_frozen),
        cmocka_unit_test(test_tensor_options_that_cannot_be),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
