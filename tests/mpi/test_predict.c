/* Every tensor of a model, predicted under every cut on four ranks: the bits of one process, for
 * operators split over devices to rounding; in order, short batches, stacked and averaged; and what
 * a loss would be that is made by hand of predicted logits. */
#include "tests/mpi/ranks.h"

enum { T = 4, D = 8, VOCAB = 12, FULL = 8, GIVEN = 7, MOST = FULL * 2 * T * 4 * D, TENSORS = 20 };

static const char model[] =
    "smp: 1\n"
    "name: predicted\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [4]}\n"
    "  targets: {dtype: int32, shape: [4]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 12, features: 8}\n"
    "  - repeat: 2\n"
    "    as: i\n"
    "    ops:\n"
    "      - {op: layernorm, name: \"h{i}.ln\", in: x, out: a}\n"
    "      - {op: linear, name: \"h{i}.qkv\", in: a, out: a, features: 24}\n"
    "      - {op: attention, name: \"h{i}.attn\", in: a, out: a, heads: 2, causal: true}\n"
    "      - {op: linear, name: \"h{i}.proj\", in: a, out: a, features: 8}\n"
    "      - {op: add, name: \"h{i}.res\", in: [x, a], out: x}\n"
    "      - {op: linear, name: \"h{i}.fc\", in: x, out: m, features: 32}\n"
    "      - {op: gelu, name: \"h{i}.gelu\", in: m, out: m}\n"
    "      - {op: linear, name: \"h{i}.down\", in: m, out: m, features: 8}\n"
    "      - {op: add, name: \"h{i}.res2\", in: [x, m], out: x}\n"
    "  - {op: linear, name: head, in: x, out: logits, features: 12, bias: false}\n"
    "  - {op: cross_entropy, name: loss, in: [logits, targets], out: l}\n"
    "loss: l\n";

/* With statistics of the running kind, pooling, and ops that may write where they read. */
static const char convolutions[] =
    "smp: 1\n"
    "name: seen\n"
    "inputs:\n"
    "  image: {dtype: float32, shape: [2, 6, 6]}\n"
    "  targets: {dtype: int32, shape: []}\n"
    "ops:\n"
    "  - {op: conv2d, name: stem, in: image, out: x, channels: 4, kernel: 3, padding: 1}\n"
    "  - {op: batchnorm, name: norm, in: x, out: a}\n"
    "  - {op: relu, name: relu, in: a, out: a}\n"
    "  - {op: max_pool, name: pool, in: a, out: a, kernel: 2, stride: 2}\n"
    "  - {op: conv2d, name: b1, in: a, out: y, channels: 4, kernel: 3, padding: 1, bias: false}\n"
    "  - {op: batchnorm, name: b1.norm, in: y, out: y}\n"
    "  - {op: add, name: join, in: [a, y], out: z}\n"
    "  - {op: relu, name: join.relu, in: z, out: z}\n"
    "  - {op: global_avg_pool, name: mean, in: z, out: z}\n"
    "  - {op: linear, name: head, in: z, out: logits, features: 12}\n"
    "  - {op: cross_entropy, name: loss, in: [logits, targets], out: l}\n"
    "loss: l\n";
static const char *const seen[] = {"stem", "norm", "relu",      "pool", "b1",  "b1.norm",
                                   "join", "z",    "join.relu", "mean", "head"};

static const char *const names[TENSORS] = {"wte",    "h0.ln",   "h0.qkv",  "h0.attn", "h0.proj",
                                           "h0.res", "h0.fc",   "h0.gelu", "h0.down", "h0.res2",
                                           "h1.ln",  "h1.qkv",  "h1.attn", "h1.proj", "h1.res",
                                           "h1.fc",  "h1.gelu", "h1.down", "x",       "head"};

typedef struct network {
    const char *text;
    const char *const *names; /* that are predicted: [n] */
    int n;
    int64_t row[2]; /* elements of a sample of the inputs */
    const void *input[2];
    const char *const *split; /* over devices: [n_split] */
    int n_split;
} network;

static int32_t tokens[FULL * T], targets[FULL * T];
static float images[FULL * 2 * 6 * 6];
static float reference[TENSORS][MOST], got[MOST];

/* Columns are gathered, rows are summands to which a bias comes behind their sum. */
static const char *const split[] = {"h*.qkv:columns/3", "h*.attn:packed heads", "h*.proj:rows",
                                    "h*.fc:columns", "h*.down:rows"};
static const network text = {model, names, TENSORS, {T, T}, {tokens, targets}, split, 5};
static const network pictures = {convolutions, seen, 11, {72, 1}, {images, targets}, NULL, 0};

static void make_samples(void)
{
    uint32_t random = 99;
    for (int i = 0; i < FULL * T; i++) {
        random = random * 1664525 + 1013904223;
        tokens[i] = (int32_t)((random >> 16) % VOCAB);
        targets[i] = (int32_t)((random >> 8) % VOCAB);
    }
    for (int i = 0; i < FULL * 72; i++) {
        random = random * 1664525 + 1013904223;
        images[i] = (float)(random >> 8) / (1 << 24) - 0.5f;
    }
}

/* A step is made, so that running statistics are not those of the beginning; its sums have one
 * order for all cuts. */
static smp *open_cut(const network *net, cut c, int tensor, int shard, const void **inputs)
{
    smp_options options = options_of(model_path(net->text), c);
    smp_step_result result;
    options.planning.tensor = tensor;
    options.planning.shard = shard;
    options.planning.gradient_blocks = 4;
    options.planning.split = net->split;
    options.planning.n_split = tensor > 1 ? net->n_split : 0;
    smp *job = open_job(&options);
    assert_int_equal(smp_microbatch_samples(job), 2);
    for (int i = 0; i < 2; i++)
        inputs[i] = (const char *)net->input[i] + smp_samples_before(job) * net->row[i] * 4;
    must(smp_step(job, inputs, &result));
    return job;
}

static void compare(const char *name, const float *expected, int64_t n, bool exact)
{
    for (int64_t i = 0; i < n; i++)
        if (exact ? got[i] != expected[i] : !(fabsf(got[i] - expected[i]) <= 2e-5f))
            fail_msg("%s: element %d is %g, expected %g", name, (int)i, (double)got[i],
                     (double)expected[i]);
}

/* Four replicas of one process each. */
static void make_reference(const network *net)
{
    const void *inputs[2];
    smp *job = open_cut(net, (cut){1, 4, 1, 2, 1}, 1, 1, inputs);
    for (int i = 0; i < net->n; i++)
        must(smp_predict(job, inputs, FULL, net->names[i], SMP_OUTPUT_CONCAT, reference[i]));
    smp_finalize(job);
}

static void check_cut(const network *net, cut c, int tensor, int shard)
{
    const void *inputs[2];
    smp *job = open_cut(net, c, tensor, shard, inputs);
    for (int i = 0; i < net->n; i++) {
        smp_tensor_description d;
        must(smp_tensor_describe(job, net->names[i], &d));
        memset(got, 0x55, sizeof got);
        must(smp_predict(job, inputs, GIVEN, net->names[i], SMP_OUTPUT_CONCAT, got));
        if (world_rank == 0) {
            compare(net->names[i], reference[i], GIVEN * d.elements, tensor == 1);
            assert_memory_equal(&got[GIVEN * d.elements], "UUUU", 4);
        }
    }
    smp_finalize(job);
}

static void test_predict_any_cut(void **state)
{
    (void)state;
    make_reference(&text);
    check_cut(&text, (cut){4, 1, 4, 2, 1}, 1, 1);
    check_cut(&text, (cut){2, 2, 2, 2, 2}, 1, 1);
    check_cut(&text, (cut){2, 2, 2, 2, 1}, 1, 2);
    check_cut(&text, (cut){2, 1, 4, 2, 1}, 2, 1);
    check_cut(&text, (cut){1, 2, 2, 2, 1}, 2, 1);
}

static void test_predict_convolutions(void **state)
{
    (void)state;
    make_reference(&pictures);
    check_cut(&pictures, (cut){4, 1, 4, 2, 1}, 1, 1);
    check_cut(&pictures, (cut){2, 2, 2, 2, 2}, 1, 1);
    check_cut(&pictures, (cut){2, 1, 4, 2, 1}, 2, 1);
}

/* Each micro-batch's loss is the mean of -log softmax at its targets. */
static void test_predict_gives_the_loss(void **state)
{
    const void *inputs[2];
    float logits[FULL * T * VOCAB], losses[FULL / 2];
    (void)state;
    smp *job = open_cut(&text, (cut){2, 2, 2, 2, 1}, 1, 1, inputs);
    must(smp_predict(job, inputs, FULL, NULL, SMP_OUTPUT_CONCAT, logits));
    must(smp_predict(job, inputs, FULL, "loss", SMP_OUTPUT_CONCAT, losses));
    for (int mb = 0; mb < FULL / 2 && world_rank == 0; mb++) {
        double sum = 0;
        for (int row = mb * 2 * T; row < (mb + 1) * 2 * T; row++) {
            double all = 0;
            for (int c = 0; c < VOCAB; c++)
                all += exp((double)logits[row * VOCAB + c]);
            sum += log(all) - (double)logits[row * VOCAB + targets[row]];
        }
        assert_true(fabs(sum / (2 * T) - (double)losses[mb]) < 1e-5);
    }
    smp_finalize(job);
}

static void test_predict_forms(void **state)
{
    enum { ROW = 2 * T * D };
    const void *inputs[2];
    float all[FULL * T * D], stack[FULL * T * D], mean[ROW];
    (void)state;
    smp *job = open_cut(&text, (cut){2, 2, 2, 2, 1}, 1, 1, inputs);
    must(smp_predict(job, inputs, FULL, "h0.res", SMP_OUTPUT_CONCAT, all));
    must(smp_predict(job, inputs, FULL, "h0.res", SMP_OUTPUT_STACK, stack));
    must(smp_predict(job, inputs, FULL, "h0.res", SMP_OUTPUT_MEAN, mean));
    for (int i = 0; i < ROW && world_rank == 0; i++) {
        double sum = 0;
        for (int mb = 0; mb < FULL / 2; mb++)
            sum += (double)all[mb * ROW + i];
        assert_true(mean[i] == (float)(sum / (FULL / 2)));
    }
    if (world_rank == 0)
        assert_memory_equal(stack, all, sizeof all);
    assert_int_equal(smp_predict(job, inputs, GIVEN, "h0.res", SMP_OUTPUT_MEAN, mean),
                     SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "whole micro-batches"));
    smp_finalize(job);
}

static void refused(smp *job, const void *const *inputs, const char *name, const char *why)
{
    assert_int_equal(smp_predict(job, inputs, FULL, name, SMP_OUTPUT_CONCAT, got), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), why))
        fail_msg("got '%s', expected '%s'", smp_last_error(), why);
}

/* The job goes on. */
static void test_predict_refuses_names(void **state)
{
    const void *inputs[2];
    smp_step_result result;
    (void)state;
    smp *job = open_cut(&text, (cut){4, 1, 4, 2, 1}, 1, 1, inputs);
    refused(job, inputs, "h0.atn", "no operator or tensor 'h0.atn'; did you mean 'h0.attn'?");
    refused(job, inputs, "tokens", "'tokens' is an input of the model");
    must(smp_step(job, inputs, &result));
    must(smp_predict(job, inputs, FULL, "logits", SMP_OUTPUT_CONCAT, got));
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predict_any_cut), cmocka_unit_test(test_predict_convolutions),
        cmocka_unit_test(test_predict_gives_the_loss), cmocka_unit_test(test_predict_forms),
        cmocka_unit_test(test_predict_refuses_names)};
    make_samples();
    RUN_ON_RANKS(argc, argv, tests);
}
