/* Inputs with `split: false`, one array for a whole step: losses and weights have the bits of a
 * model that gets the array once for every sample, in steps, short batches and evaluations, under
 * every cut. On four ranks. */
#include "tests/mpi/ranks.h"

enum { FULL = 8, T = 6, D = 16, STEPS = 5, TOKENS = 0, POSITIONS, MASK, TARGETS, INPUTS };

/* On several stages the mask is read on two ranks. */
static const char model[] =
    "smp: 1\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [6]}\n"
    "  positions: {dtype: int32, shape: [6], split: %s}\n"
    "  mask: {dtype: float32, shape: [6, 16], split: %s}\n"
    "  targets: {dtype: int32, shape: [6], split: %s}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: 16, init_std: 1}\n"
    "  - {op: embedding, name: wpe, in: positions, out: p, rows: 9, features: 16, init_std: 1}\n"
    "  - {op: add, name: sum, in: [x, p], out: x}\n"
    "  - {op: mul, name: cut, in: [x, mask], out: x}\n"
    "  - {op: linear, name: fc, in: x, out: x, features: 16}\n"
    "  - {op: gelu, name: act, in: x, out: x}\n"
    "  - {op: mul, name: cut2, in: [x, mask], out: x}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 32}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: l}\n"
    "loss: l\n";

/* Short ones end within a micro-batch, with one, and leave replicas without samples. */
static const int64_t given[STEPS] = {FULL, 5, 1, 4, FULL};

static int32_t value_of(int input, int step, int sample, int i)
{
    switch (input) {
    case POSITIONS: /* another array each step */
        return (i + step) % 9;
    case TARGETS:
        return (i + sample) % 4 == 0 ? -1 : (3 * i + 5 * sample + step) % 32;
    default:
        return (7 * i + 5 * sample + 3 * step) % 32;
    }
}

static float mask_of(int step, int i)
{
    return i % 5 == 0 ? 0.0f : (float)sin(1.0 + i + step);
}

typedef struct batch {
    int32_t ints[INPUTS][FULL * T];
    float mask[FULL * T * D];
} batch;

static void make_batch(batch *b, int step, bool targets_split)
{
    for (int s = 0; s < FULL; s++) {
        for (int i = 0; i < T; i++)
            for (int input = 0; input < INPUTS; input++)
                b->ints[input][s * T + i] =
                    value_of(input, step, input == TARGETS && !targets_split ? 0 : s, i);
        for (int i = 0; i < T * D; i++)
            b->mask[s * T * D + i] = mask_of(step, i);
    }
}

/* This replica's arrays: of what is not split the first sample, which may be all that there is. */
static void take_part(const smp *job, const batch *b, batch *one, const void **inputs)
{
    const int64_t at = smp_samples_before(job);
    memset(one, 0x55, sizeof *one); /* what stands behind one sample nobody reads */
    for (int input = 0; input < INPUTS; input++) {
        const char *all = input == MASK ? (const char *)b->mask : (const char *)b->ints[input];
        char *to = input == MASK ? (char *)one->mask : (char *)one->ints[input];
        const size_t bytes = (size_t)(input == MASK ? T * D : T) * 4;
        inputs[input] = all + at * (int64_t)bytes;
        if (smp_input_is_split(job, input))
            continue;
        memcpy(to, all, bytes);
        inputs[input] = to;
    }
}

typedef struct record {
    smp_step_result step[STEPS], evaluated[STEPS];
    uint64_t hash;
} record;

/* `targets_alike`: all samples have those of sample 0. */
static void train(cut c, int tensor, bool split, bool targets_split, bool targets_alike, record *r)
{
    static batch b, one;
    char text[sizeof model + 32];
    const char *const flag = split ? "true" : "false";
    snprintf(text, sizeof text, model, flag, flag, targets_split ? "true" : "false");
    smp_options options = options_of(model_path(text), c);
    options.planning.tensor = tensor;
    smp *job = open_job(&options);
    assert_int_equal(smp_input_is_split(job, TOKENS), 1);
    assert_int_equal(smp_input_is_split(job, MASK), split);
    assert_int_equal(smp_input_is_split(job, TARGETS), targets_split);
    assert_int_equal(smp_input_is_split(job, INPUTS), 0);
    for (int step = 0; step < STEPS; step++) {
        const void *inputs[INPUTS];
        make_batch(&b, step, !targets_alike);
        take_part(job, &b, &one, inputs);
        must(smp_step_short(job, inputs, given[step], &r->step[step]));
        must(smp_evaluate_short(job, inputs, given[step], &r->evaluated[step]));
    }
    r->hash = weights_hash(job);
    smp_finalize(job);
}

static void compare(const record *a, const record *b)
{
    for (int step = 0; step < STEPS; step++) {
        assert_true(a->step[step].loss == b->step[step].loss);
        assert_true(a->evaluated[step].loss == b->evaluated[step].loss);
        assert_int_equal(a->step[step].loss_rows, b->step[step].loss_rows);
        assert_int_equal(a->evaluated[step].hits, b->evaluated[step].hits);
        assert_true(a->step[step].loss > 0.0 && a->step[step].loss_rows > 0);
    }
    assert_true(a->hash == b->hash);
}

static const cut cuts[] = {{.stages = 4, .ddp = 1, .microbatches = 4, .batch = 2, .chunks = 1},
                           {.stages = 2, .ddp = 2, .microbatches = 2, .batch = 2, .chunks = 2},
                           {.stages = 1, .ddp = 4, .microbatches = 1, .batch = 2, .chunks = 1}};

static void test_one_array_is_as_good_as_many(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        static record many, one;
        train(cuts[i], 1, true, true, false, &many);
        train(cuts[i], 1, false, true, false, &one);
        compare(&many, &one);
    }
}

static void test_devices_that_compute_together_share_it(void **state)
{
    const cut c = {.stages = 2, .ddp = 1, .microbatches = 4, .batch = 2, .chunks = 1};
    static record many, one;
    (void)state;
    train(c, 2, true, true, false, &many);
    train(c, 2, false, true, false, &one);
    compare(&many, &one);
}

/* The rows that a loss is the mean over are counted in the caller's arrays. */
static void test_targets_of_all_samples_count_for_each(void **state)
{
    static record many, one;
    (void)state;
    train(cuts[1], 1, true, true, true, &many);
    train(cuts[1], 1, true, false, true, &one);
    compare(&many, &one);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_array_is_as_good_as_many),
        cmocka_unit_test(test_devices_that_compute_together_share_it),
        cmocka_unit_test(test_targets_of_all_samples_count_for_each),
    };
    RUN_ON_RANKS(argc, argv, tests);
}
