/* States in bf16: rounding against its definition and without bias; every optimizer against itself
 * on floats with rounding element by element, however the update is cut and wherever its elements
 * stand in the whole weight. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/optimizer/optimizer.h"
#include "exec/parts/weight_runs.h"
#include "graph/base/random.h"

enum { N = 5237, STEPS = 6 };

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float wide(uint32_t bf16)
{
    return from_bits(bf16 << 16);
}

static float value_of(uint64_t stream, uint64_t i)
{
    return 2.0f * smp_random_uniform((uint32_t)smp_random_mix(stream << 32 | i)) - 1.0f;
}

/* Up if what is cut off and the random part of a unit make a whole one. */
static void test_bf16_states_round_as_defined(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        const uint64_t draw = smp_random_mix(i);
        const float value = from_bits((uint32_t)draw);
        const uint32_t random = (uint32_t)(draw >> 32) & 0xffff;
        const uint32_t got = smp_state_round(to_bits(value), random);
        if (isnan(value)) {
            assert_true(isnan(wide(got)));
            continue;
        }
        const float down = wide(to_bits(value) >> 16), up = wide((to_bits(value) >> 16) + 1);
        if (isinf(up)) /* the next above is none, as for what rounds to the nearest */
            continue;
        const double cut = ((double)value - down) / ((double)up - down);
        assert_true(wide(got) == (cut + random / 65536.0 >= 1.0 ? up : down));
    }
    assert_int_equal(smp_state_round(to_bits(INFINITY), 0xffff), to_bits(INFINITY) >> 16);
    assert_int_equal(smp_state_round(to_bits(-INFINITY), 0xffff), to_bits(-INFINITY) >> 16);
    assert_true(isnan(wide(smp_state_round(0x7f800001u, 0xffff))));
    assert_true(isnan(wide(smp_state_round(0xffffffffu, 0xffff))));
}

/* Every number of the format comes back, subnormal ones too; between two the nearer, or the even
 * one. */
static void test_bf16_states_to_nearest(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f80; bits++) {
        const float here = wide(bits), next = wide(bits + 1);
        const float values[] = {here, -here, (float)(here + 0.499 * ((double)next - here)),
                                (float)(here + 0.501 * ((double)next - here)),
                                (float)(0.5 * ((double)here + next))};
        uint16_t got[5];
        smp_states_to_nearest(got, values, 5);
        assert_int_equal(got[0], bits);
        assert_int_equal(got[1], bits | 0x8000);
        if (bits >= 0x7f7f || bits < 0x100) /* a float has no such value there */
            continue;
        assert_int_equal(got[2], bits);
        assert_int_equal(got[3], bits + 1);
        assert_int_equal(got[4], bits + bits % 2);
    }
}

static smp_update_settings make_settings(void)
{
    return (smp_update_settings){.lr = 1.0f,
                                 .weight_decay = 0.1f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f,
                                 .momentum = 0.9f,
                                 .trust_coefficient = 0.2f};
}

/* A momentum of 1 adds up gradients of a tenth of a unit: the mean of many is right to five
 * deviations; to the nearest they stand still. AdamW's two states of a weight do not go together:
 * the product of what rounding does to them has the mean 0. */
static void test_bf16_states_have_no_bias(void **state)
{
    (void)state;
    enum { MANY = 1 << 14, TIMES = 100 };
    static float weight[MANY], grad[MANY];
    static uint16_t sum[MANY];
    const double unit = 0x1p-7, term = 0.1 * unit, right = 1.0 + TIMES * term;
    const double each = sqrt(TIMES * 0.1 * 0.9) * unit;
    for (int nearest = 0; nearest < 2; nearest++) {
        smp_update_settings settings = {.lr = 1.0f, .momentum = 1.0f};
        double mean = 0.0;
        for (int i = 0; i < MANY; i++) {
            weight[i] = 0.0f;
            grad[i] = (float)term;
            sum[i] = 0x3f80; /* 1 */
        }
        for (int64_t step = 1; step <= TIMES; step++) {
            smp_update u = {.weight = weight,
                            .grad = grad,
                            .state16 = {sum},
                            .rounding = {.run = MANY, .count = 1, .blocks = 1},
                            .elements = MANY,
                            .grad_scale = 1.0f,
                            .step = step,
                            .settings = &settings};
            u.rounding.nearest = nearest != 0;
            smp_state_rounding_seed(&u.rounding, 9, 4, step);
            smp_optimizer_apply(smp_optimizer_find("sgd"), &u);
        }
        for (int i = 0; i < MANY; i++)
            mean += (double)wide(sum[i]) / MANY;
        if (nearest)
            assert_true(mean == 1.0);
        else
            assert_true(fabs(mean - right) < 5.0 * each / sqrt(MANY));
    }
}

static void test_bf16_states_are_rounded_apart(void **state)
{
    (void)state;
    enum { MANY = 1 << 16 };
    static float weight[MANY], grad[MANY];
    static uint16_t states[2][MANY];
    const smp_update_settings settings = {.lr = 1.0f, .beta1 = 0.5f, .beta2 = 0.5f};
    smp_update u = {.weight = weight,
                    .grad = grad,
                    .state16 = {states[0], states[1]},
                    .rounding = {.run = MANY, .count = 1, .blocks = 1},
                    .elements = MANY,
                    .grad_scale = 1.0f,
                    .step = 1,
                    .settings = &settings};
    const double g = 1.0 + 0x1p-8; /* half a unit is cut off of m, about as much of v */
    double up[2] = {0}, both = 0.0;
    for (int i = 0; i < MANY; i++)
        grad[i] = (float)g;
    smp_state_rounding_seed(&u.rounding, 5, 6, 1);
    smp_optimizer_apply(smp_optimizer_find("adamw"), &u);
    for (int i = 0; i < MANY; i++) {
        const bool m = wide(states[0][i]) > 0.5 * g, v = wide(states[1][i]) > 0.5 * g * g;
        up[0] += (double)m / MANY;
        up[1] += (double)v / MANY;
        both += (double)(m && v) / MANY;
    }
    assert_true(fabs(up[0] - 0.5) < 5 * 0.5 / sqrt(MANY));
    assert_true(up[1] > 0.0 && up[1] < 1.0);
    assert_true(fabs(both - up[0] * up[1]) < 5 * 0.5 / sqrt(MANY));
}

/* One weight with what belongs to it. */
typedef struct arrays {
    float weight[N], grad[N], wide[2][N];
    uint16_t state[2][N];
} arrays;

static smp_update update_of(arrays *a, const smp_update_settings *settings, int64_t step)
{
    return (smp_update){.weight = a->weight,
                        .grad = a->grad,
                        .elements = N,
                        .grad_scale = 0.7f,
                        .lr = 0.01f,
                        .trust = 0.5f,
                        .step = step,
                        .settings = settings};
}

static void set_grad(arrays *a, int64_t step)
{
    for (int i = 0; i < N; i++)
        a->grad[i] = value_of(70 + (uint64_t)step, (uint64_t)i);
}

static void start(arrays *a)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < N; i++)
        a->weight[i] = value_of(7, (uint64_t)i);
}

/* On floats, which are rounded behind it one by one. */
static void apply_slowly(const smp_optimizer *o, arrays *a, const smp_update_settings *settings,
                         smp_state_rounding r, int64_t step)
{
    smp_update u = update_of(a, settings, step);
    u.state[0] = a->wide[0];
    u.state[1] = a->wide[1];
    u.direction = a->grad;
    if (o->measure)
        o->measure(&u);
    u.direction = NULL;
    o->update(&u);
    for (int64_t i = 0; i < N; i++) {
        const uint64_t place = (uint64_t)smp_state_place(r, i);
        const smp_random4 word = smp_random_philox(r.key, place / 4, r.counter_high);
        for (int k = 0; k < o->states; k++) {
            const uint32_t random = (word.v[place % 4] >> 16 * k) & 0xffff;
            a->state[k][i] = (uint16_t)smp_state_round(to_bits(a->wide[k][i]), random);
            a->wide[k][i] = wide(a->state[k][i]);
        }
    }
}

static void apply_pieces(const smp_optimizer *o, arrays *a, const smp_update_settings *settings,
                         smp_state_rounding r, int64_t step, int64_t piece)
{
    for (int64_t begin = 0; begin < N; begin += piece) {
        smp_update u = update_of(a, settings, step);
        u.elements = N - begin < piece ? N - begin : piece;
        u.weight += begin;
        u.grad += begin;
        for (int k = 0; k < o->states; k++)
            u.state16[k] = a->state[k] + begin;
        u.rounding = r;
        u.rounding.first += begin;
        u.direction = a->grad + begin;
        if (o->measure)
            smp_optimizer_apply(o, &u);
        u.direction = NULL;
        smp_optimizer_apply(o, &u);
    }
}

static void test_bf16_states_match_floats_rounded(void **state)
{
    (void)state;
    static const smp_state_rounding where[] = {
        {.run = N, .count = 1, .blocks = 1},
        {.first = 777, .run = 1 << 20, .count = 1, .blocks = 1},
        {.first = 3, .run = 96, .index = 1, .count = 3, .blocks = 1},
        {.run = 5, .index = 0, .count = 2, .blocks = 3},
        {.first = 1000, .run = 1, .index = 3, .count = 4, .blocks = 2},
    };
    static arrays slow, fast;
    const smp_update_settings settings = make_settings();
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++)
        for (size_t w = 0; w < sizeof where / sizeof *where; w++)
            for (int64_t piece = 0; piece < 3; piece++) {
                static const int64_t pieces[] = {N, 64, 1021};
                start(&slow);
                start(&fast);
                for (int64_t step = 1; step <= STEPS; step++) {
                    smp_state_rounding r = where[w];
                    smp_state_rounding_seed(&r, 11, 3, step);
                    set_grad(&slow, step);
                    set_grad(&fast, step);
                    apply_slowly(*o, &slow, &settings, r, step);
                    apply_pieces(*o, &fast, &settings, r, step, pieces[piece]);
                }
                assert_memory_equal(slow.weight, fast.weight, sizeof slow.weight);
                for (int k = 0; k < (*o)->states; k++)
                    assert_memory_equal(slow.state[k], fast.state[k], sizeof slow.state[k]);
            }
}

/* Seed, weight, step, place and state decide; places are those of parts of weights. */
static void test_bf16_states_places(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        const uint64_t draw = smp_random_mix(i);
        const int blocks = 1 + (int)(draw % 3), count = 1 + (int)(draw >> 8 & 3);
        const smp__runs runs = {.run = 1 + (int64_t)(draw >> 16 & 31),
                                .index = (int)(draw >> 32 & 0xff) % count,
                                .count = count,
                                .blocks = blocks};
        const smp_state_rounding r = {.first = (int64_t)(draw >> 40 & 0xff),
                                      .run = runs.run,
                                      .index = runs.index,
                                      .count = count,
                                      .blocks = blocks};
        for (int64_t at = 0; at < 200; at += 7)
            assert_int_equal(smp_state_place(r, at), smp__runs_place(runs, r.first + at));
    }
    smp_state_rounding a = {0}, b = {0};
    smp_state_rounding_seed(&a, 1, 2, 3);
    smp_state_rounding_seed(&b, 2, 2, 3);
    assert_true(a.key != b.key);
    smp_state_rounding_seed(&b, 1, 3, 3);
    assert_true(a.key != b.key);
    smp_state_rounding_seed(&b, 1, 2, 4);
    assert_true(a.key == b.key && a.counter_high != b.counter_high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_states_round_as_defined),
        cmocka_unit_test(test_bf16_states_to_nearest),
        cmocka_unit_test(test_bf16_states_have_no_bias),
        cmocka_unit_test(test_bf16_states_are_rounded_apart),
        cmocka_unit_test(test_bf16_states_match_floats_rounded),
        cmocka_unit_test(test_bf16_states_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
