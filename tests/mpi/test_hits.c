/* How many rows an evaluation has right, against a naive count: whatever the split, with ignored
 * targets, ties, and batches that end within a micro-batch. On four ranks. */
#include "tests/mpi/ranks.h"

enum { FULL = 8, ROWS = 6, CLASSES = 7, BATCHES = 24 };

/* With weights of the identity the logits are the values of x, which are not negative. The second
 * one hands its targets on: another rank than that of the loss reads them. */
#define MODEL(label, handed, in)                                                                   \
    "smp: 1\n"                                                                                     \
    "name: hits\n"                                                                                 \
    "inputs:\n"                                                                                    \
    "  x: {dtype: float32, shape: [6, 7]}\n"                                                       \
    "  label: {dtype: int32, shape: " label "}\n"                                                  \
    "ops:\n" handed "  - {op: linear, name: a, in: x, out: y, features: 7, bias: false}\n"         \
    "  - {op: relu, name: b, in: y, out: y}\n"                                                     \
    "  - {op: linear, name: c, in: y, out: y, features: 7, bias: false}\n"                         \
    "  - {op: relu, name: d, in: y, out: y}\n"                                                     \
    "  - {op: cross_entropy, name: loss, in: [y, " in "], out: l, label_smoothing: 0.1}\n"         \
    "loss: l\n"
static const char direct[] = MODEL("[6]", "", "label");
static const char handed_on[] =
    MODEL("[2, 3]", "  - {op: flatten, name: row, in: label, out: row, stage: 0}\n", "row");
static const char without[] = "smp: 1\n"
                              "name: none\n"
                              "inputs:\n"
                              "  x: {dtype: float32, shape: [6, 7]}\n"
                              "  goal: {dtype: float32, shape: [6, 7]}\n"
                              "ops:\n"
                              "  - {op: linear, name: a, in: x, out: y, features: 7}\n"
                              "  - {op: mse, name: loss, in: [y, goal], out: l}\n"
                              "loss: l\n";

static float x[FULL * ROWS * CLASSES];
static int32_t label[FULL * ROWS];

static int64_t given(int batch)
{
    return 1 + (7 - batch % FULL + 3 * batch) % FULL;
}

/* Few values, so that most rows have their largest more than once; some targets do not count; and
 * behind the samples stands what no kernel may see. */
static void make_batch(int batch)
{
    uint32_t random = 12345 + (uint32_t)batch;
    for (int i = 0; i < FULL * ROWS; i++) {
        bool there = i < given(batch) * ROWS;
        for (int c = 0; c < CLASSES; c++) {
            random = random * 1664525 + 1013904223;
            x[i * CLASSES + c] = there ? (float)(random >> 30) : NAN;
        }
        random = random * 1664525 + 1013904223;
        label[i] = there ? (int32_t)((random >> 16) % (CLASSES + 1)) - 1 : CLASSES;
    }
}

/* Targets with fewer than `top` classes before them. */
static int64_t naive_hits(int batch, int top)
{
    int64_t hits = 0;
    for (int i = 0; i < given(batch) * ROWS; i++) {
        const float *row = &x[i * CLASSES];
        int before = label[i] < 0 ? CLASSES : 0;
        for (int c = 0; c < CLASSES && label[i] >= 0; c++)
            before += row[c] > row[label[i]] || (row[c] == row[label[i]] && c < label[i]);
        hits += before < top;
    }
    return hits;
}

static void set_identity(smp *job)
{
    float identity[CLASSES * CLASSES] = {0};
    for (int i = 0; i < CLASSES; i++)
        identity[i * CLASSES + i] = 1;
    must(smp_weight_set(job, "a.weight", identity, CLASSES * CLASSES));
    must(smp_weight_set(job, "c.weight", identity, CLASSES * CLASSES));
}

static void check(const char *model, cut c)
{
    smp_options options = options_of(model_path(model), c);
    smp *job = open_job(&options);
    int64_t most = 0, more = 0, less = 0;
    smp_step_result result;
    set_identity(job);
    assert_int_equal(smp_step_samples(job) * c.ddp, FULL);
    for (int batch = 0; batch < BATCHES; batch++) {
        const int64_t first = smp_samples_before(job) * ROWS;
        const void *const inputs[] = {x + first * CLASSES, label + first};
        make_batch(batch);
        must(smp_evaluate_short(job, inputs, given(batch), &result));
        if (result.hits != naive_hits(batch, 1))
            fail_msg("%d x %d samples, %d stages, ddp %d, %d given: %d hits, expected %d",
                     c.microbatches, c.batch, c.stages, c.ddp, (int)given(batch), (int)result.hits,
                     (int)naive_hits(batch, 1));
        assert_int_equal(result.hits_top5, naive_hits(batch, 5));
        more += result.hits_top5 > result.hits;
        less += result.hits_top5 < result.loss_rows;
        most = result.hits > most ? result.hits : most;
    }
    assert_true(most > FULL && more > 0 && less > 0);
    const int64_t first = smp_samples_before(job) * ROWS;
    const void *const inputs[] = {x + first * CLASSES, label + first};
    must(smp_step_short(job, inputs, given(BATCHES - 1), &result));
    assert_int_equal(result.hits_top5, -1);
    assert_int_equal(result.hits, -1); /* a training step does not count */
    smp_finalize(job);
}

static void test_hits_any_cut(void **state)
{
    static const cut cuts[] = {{4, 1, 4, 2, 1}, {4, 1, 2, 4, 1}, {2, 2, 2, 2, 1},
                               {1, 4, 1, 2, 1}, {2, 2, 1, 4, 1}, {2, 2, 2, 2, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        check(direct, cuts[i]);
    check(handed_on, (cut){4, 1, 4, 2, 1});
    check(handed_on, (cut){2, 2, 2, 2, 1});
}

/* Every micro-batch of a step has a count of its own. */
static void test_hits_of_inference(void **state)
{
    (void)state;
    char text[2048];
    snprintf(text, sizeof text, "%smode: inference\n", direct);
    smp_options options = options_of(model_path(text), (cut){2, 2, 2, 2, 1});
    smp *job = open_job(&options);
    smp_step_result result;
    set_identity(job);
    for (int batch = 0; batch < BATCHES; batch++) {
        const int64_t first = smp_samples_before(job) * ROWS;
        const void *const inputs[] = {x + first * CLASSES, label + first};
        make_batch(batch);
        must(smp_step_short(job, inputs, given(batch), &result));
        assert_int_equal(result.hits, naive_hits(batch, 1));
        assert_int_equal(result.hits_top5, naive_hits(batch, 5));
    }
    smp_finalize(job);
}

static void test_hits_of_another_loss(void **state)
{
    (void)state;
    smp_options options = options_of(model_path(without), (cut){1, 4, 1, 2, 1});
    smp *job = open_job(&options);
    smp_step_result result;
    make_batch(0);
    must(smp_evaluate_short(job, (const void *const[]){x, x}, 1, &result));
    assert_int_equal(result.hits, -1);
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits_any_cut),
        cmocka_unit_test(test_hits_of_inference),
        cmocka_unit_test(test_hits_of_another_loss),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
