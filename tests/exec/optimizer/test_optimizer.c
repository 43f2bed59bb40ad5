/* Optimizers: every registered one for descent and for independence of where an array is cut; AdamW
 * and SGD against double-precision references and values of PyTorch 1.13; the learning rate. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/optimizer/optimizer.h"
#include "graph/base/random.h"

enum { N = 1237, STEPS = 30 };

static smp_options make_options(void)
{
    return (smp_options){.lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .epsilon = 1e-8f,
                         .momentum = 0.9f,
                         .weight_decay = 0.1f};
}

/* In [-1, 1), a function of its arguments. */
static float value(uint64_t stream, uint64_t i)
{
    return 2.0f * smp_random_uniform((uint32_t)smp_random_mix(stream << 32 | i)) - 1.0f;
}

/* References in double, one weight at a time. */
typedef void (*reference)(const smp_options *o, double lr, double decay, int64_t step, double g,
                          double *w, double state[2]);

static void reference_adamw(const smp_options *o, double lr, double decay, int64_t step, double g,
                            double *w, double state[2])
{
    *w -= lr * decay * *w;
    state[0] = o->beta1 * state[0] + (1 - (double)o->beta1) * g;
    state[1] = o->beta2 * state[1] + (1 - (double)o->beta2) * g * g;
    double m = state[0] / (1 - pow(o->beta1, (double)step));
    double v = state[1] / (1 - pow(o->beta2, (double)step));
    *w -= lr * m / (sqrt(v) + o->epsilon);
}

static void reference_sgd(const smp_options *o, double lr, double decay, int64_t step, double g,
                          double *w, double state[2])
{
    (void)step;
    *w -= lr * decay * *w;
    state[0] = o->momentum * state[0] + g;
    *w -= lr * state[0];
}

static const struct {
    const char *name;
    reference update;
} references[] = {{"adamw", reference_adamw}, {"sgd", reference_sgd}};

/* Names are found, unique and described; states are no more than memory is planned for. */
static void test_optimizer_registry(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        const char *name = (*o)->name;
        if (smp_optimizer_find(name) != *o)
            fail_msg("%s: two optimizers of that name", name);
        if (!(*o)->update || !(*o)->summary || (*o)->states < 0 ||
            (*o)->states > SMP_MAX_OPTIMIZER_STATES)
            fail_msg("%s: no update, no summary, or %d states", name, (*o)->states);
    }
    assert_string_equal(smp_options_default().optimizer, smp_optimizers()[0]->name);
    assert_int_equal(smp_optimizer_find("adamw")->states, 2);
    assert_int_equal(smp_optimizer_find("sgd")->states, 1);
    assert_null(smp_optimizer_find("adam"));
    assert_null(smp_optimizer_find(""));
}

/* Every optimizer finds the minimum of sum (w - target)^2 / 2. */
static void test_optimizer_descends(void **state)
{
    (void)state;
    enum { WEIGHTS = 32, LONG = 400 };
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        float weight[WEIGHTS], grad[WEIGHTS], states[2][WEIGHTS] = {{0}};
        const smp_options options = make_options();
        smp_update update = {.weight = weight,
                             .grad = grad,
                             .state = {states[0], states[1]},
                             .elements = WEIGHTS,
                             .grad_scale = 1.0f,
                             .options = &options};
        for (int i = 0; i < WEIGHTS; i++)
            weight[i] = value(3, (uint64_t)i);
        for (update.step = 1; update.step <= LONG; update.step++) {
            for (int i = 0; i < WEIGHTS; i++)
                grad[i] = weight[i] - value(4, (uint64_t)i);
            update.lr = 0.05f * (float)(LONG - update.step) / LONG;
            (*o)->update(&update);
        }
        for (int i = 0; i < WEIGHTS; i++)
            if (!(fabsf(weight[i] - value(4, (uint64_t)i)) < 1e-2f))
                fail_msg("%s: weight %d is %g, the minimum is at %g", (*o)->name, i,
                         (double)weight[i], (double)value(4, (uint64_t)i));
    }
}

static void check_reference(const smp_optimizer *optimizer, reference update, float decay)
{
    static float weight[N], grad[N], states[2][N];
    static double ref_weight[N], ref_state[N][2];
    smp_options options = make_options();
    memset(states, 0, sizeof states);
    memset(ref_state, 0, sizeof ref_state);
    for (int i = 0; i < N; i++)
        ref_weight[i] = weight[i] = value(1, (uint64_t)i);
    for (int64_t step = 1; step <= STEPS; step++) {
        const float scale = step % 3 ? 1.0f : 0.37f;
        const float lr = 0.01f * (float)step / STEPS;
        for (int i = 0; i < N; i++)
            grad[i] = 3.0f * value(1 + (uint64_t)step, (uint64_t)i);
        optimizer->update(&(smp_update){.weight = weight,
                                        .grad = grad,
                                        .state = {states[0], states[1]},
                                        .elements = N,
                                        .grad_scale = scale,
                                        .lr = lr,
                                        .weight_decay = decay,
                                        .step = step,
                                        .options = &options});
        for (int i = 0; i < N; i++)
            update(&options, lr, decay, step, (double)grad[i] * scale, &ref_weight[i],
                   ref_state[i]);
    }
    for (int i = 0; i < N; i++) {
        assert_true(fabs(weight[i] - ref_weight[i]) < 3e-6);
        for (int s = 0; s < optimizer->states; s++)
            assert_true(fabs(states[s][i] - ref_state[i][s]) < 2e-5 * (1 + fabs(ref_state[i][s])));
    }
}

static void test_optimizer_matches_reference(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof references / sizeof *references; r++) {
        const smp_optimizer *optimizer = smp_optimizer_find(references[r].name);
        assert_non_null(optimizer);
        check_reference(optimizer, references[r].update, 0.0f);
        check_reference(optimizer, references[r].update, 0.3f);
    }
}

/* A weight's bits do not depend on what lies beside it: whole array against odd pieces. */
static void test_optimizer_is_elementwise(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        static float whole[3][N], pieces[3][N], grad[N];
        smp_options options = make_options();
        for (int i = 0; i < N; i++) {
            whole[0][i] = pieces[0][i] = value(7, (uint64_t)i);
            whole[1][i] = pieces[1][i] = whole[2][i] = pieces[2][i] = 0.0f;
        }
        for (int64_t step = 1; step <= 5; step++) {
            for (int i = 0; i < N; i++)
                grad[i] = value(70 + (uint64_t)step, (uint64_t)i);
            smp_update update = {.weight = whole[0],
                                 .grad = grad,
                                 .state = {whole[1], whole[2]},
                                 .elements = N,
                                 .grad_scale = 0.7f,
                                 .lr = 0.01f,
                                 .weight_decay = 0.1f,
                                 .step = step,
                                 .options = &options};
            (*o)->update(&update);
            for (int begin = 0, length = 1; begin < N; begin += length, length += 2) {
                int end = begin + length < N ? begin + length : N;
                update.weight = pieces[0] + begin;
                update.grad = grad + begin;
                update.state[0] = pieces[1] + begin;
                update.state[1] = pieces[2] + begin;
                update.elements = end - begin;
                (*o)->update(&update);
            }
        }
        if (memcmp(whole, pieces, sizeof whole) != 0)
            fail_msg("%s: other bits where an array is cut", (*o)->name);
    }
}

static const float torch_start[5] = {0.5f, -1.25f, 2.0f, 0.0f, -0.75f};
static const float torch_grad[3][5] = {{0.1f, -0.2f, 0.3f, -0.4f, 0.5f},
                                       {0.05f, 0.4f, -0.3f, 1e-4f, 0.25f},
                                       {-0.6f, 0.1f, 0.0f, 2.0f, -0.125f}};

static void check_torch(const char *name, float lr, float decay, float expected[3][5])
{
    float weight[5], states[2][5] = {{0}};
    smp_options options = make_options();
    memcpy(weight, torch_start, sizeof weight);
    for (int step = 1; step <= 3; step++) {
        smp_optimizer_find(name)->update(&(smp_update){.weight = weight,
                                                       .grad = torch_grad[step - 1],
                                                       .state = {states[0], states[1]},
                                                       .elements = 5,
                                                       .grad_scale = 1.0f,
                                                       .lr = lr,
                                                       .weight_decay = decay,
                                                       .step = step,
                                                       .options = &options});
        for (int i = 0; i < 5; i++)
            assert_true(fabsf(weight[i] - expected[step - 1][i]) <=
                        4e-7f * (1.0f + fabsf(expected[step - 1][i])));
    }
}

/* torch.optim.AdamW(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1) of PyTorch 1.13. */
static void test_optimizer_adamw_matches_torch(void **state)
{
    (void)state;
    float expected[3][5] = {
        {0.489500016f, -1.23874998f, 1.98800004f, 0.0100000007f, -0.759249985f},
        {0.479617596f, -1.24114501f, 1.98653841f, 0.0167745948f, -0.767883658f},
        {0.483985305f, -1.24407661f, 1.98496401f, 0.0116267242f, -0.772855937f}};
    check_torch("adamw", 0.01f, 0.1f, expected);
}

/* torch.optim.SGD(lr=0.1, momentum=0.9) of PyTorch 1.13; with decay, w *= 1 - 0.1 * 0.1 before. */
static void test_optimizer_sgd_matches_torch(void **state)
{
    (void)state;
    float plain[3][5] = {{0.49000001f, -1.23000002f, 1.97000003f, 0.0400000028f, -0.800000012f},
                         {0.476000011f, -1.25199997f, 1.97300005f, 0.0759900063f, -0.870000005f},
                         {0.523400009f, -1.28180003f, 1.97570002f, -0.0916189998f, -0.92049998f}};
    float decayed[3][5] = {
        {0.485000014f, -1.21749997f, 1.95000005f, 0.0400000028f, -0.792500019f},
        {0.466150016f, -1.22732496f, 1.93350005f, 0.075590007f, -0.854575038f},
        {0.508888543f, -1.24485183f, 1.91686499f, -0.0927748978f, -0.896529257f}};
    check_torch("sgd", 0.1f, 0.0f, plain);
    check_torch("sgd", 0.1f, 0.1f, decayed);
}

/* Large steps: 1 - beta^t must go to 1, not to 0 / 0. */
static void test_optimizer_adamw_late_step_is_finite(void **state)
{
    (void)state;
    float weight = 1.0f, grad = 0.0f, mean = 0.0f, square = 0.0f;
    smp_options options = make_options();
    smp_optimizer_find("adamw")->update(&(smp_update){.weight = &weight,
                                                      .grad = &grad,
                                                      .state = {&mean, &square},
                                                      .elements = 1,
                                                      .grad_scale = 1.0f,
                                                      .lr = 0.01f,
                                                      .step = INT64_C(1) << 40,
                                                      .options = &options});
    assert_true(weight == 1.0f);
}

static void test_learning_rate_shape(void **state)
{
    (void)state;
    smp_options o = {.lr = 1.0f, .min_lr = 0.1f, .warmup_steps = 10, .decay_steps = 110};
    assert_true(smp_learning_rate(&o, 1) == 0.1f);
    assert_true(smp_learning_rate(&o, 5) == 0.5f);
    assert_true(smp_learning_rate(&o, 10) == 1.0f);
    assert_true(fabsf(smp_learning_rate(&o, 60) - 0.55f) < 1e-6f);
    assert_true(fabsf(smp_learning_rate(&o, 35) - (0.1f + 0.45f * (1 + 0.70710678f))) < 1e-6f);
    assert_true(smp_learning_rate(&o, 110) == 0.1f);
    assert_true(smp_learning_rate(&o, INT64_MAX) == 0.1f);
    for (int64_t step = 11; step <= 110; step++)
        assert_true(smp_learning_rate(&o, step) < smp_learning_rate(&o, step - 1));
}

static void test_learning_rate_without_parts(void **state)
{
    (void)state;
    smp_options constant = {.lr = 0.3f, .min_lr = 0.1f};
    assert_true(smp_learning_rate(&constant, 1) == 0.3f);
    assert_true(smp_learning_rate(&constant, 1000000) == 0.3f);
    smp_options warm = {.lr = 0.3f, .min_lr = 0.1f, .warmup_steps = 4};
    assert_true(smp_learning_rate(&warm, 2) == 0.15f);
    assert_true(smp_learning_rate(&warm, 5) == 0.3f);
    smp_options decay = {.lr = 0.3f, .decay_steps = 100};
    assert_true(smp_learning_rate(&decay, 1) < 0.3f && smp_learning_rate(&decay, 1) > 0.299f);
    assert_true(smp_learning_rate(&decay, 100) == 0.0f);
    /* A decay that ends inside the warm-up leaves nothing but the floor after it. */
    smp_options inside = {.lr = 0.3f, .min_lr = 0.1f, .warmup_steps = 20, .decay_steps = 10};
    assert_true(smp_learning_rate(&inside, 15) == (float)(0.3f * 15.0 / 20.0));
    assert_true(smp_learning_rate(&inside, 21) == 0.1f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_registry),
        cmocka_unit_test(test_optimizer_descends),
        cmocka_unit_test(test_optimizer_matches_reference),
        cmocka_unit_test(test_optimizer_is_elementwise),
        cmocka_unit_test(test_optimizer_adamw_matches_torch),
        cmocka_unit_test(test_optimizer_sgd_matches_torch),
        cmocka_unit_test(test_optimizer_adamw_late_step_is_finite),
        cmocka_unit_test(test_learning_rate_shape),
        cmocka_unit_test(test_learning_rate_without_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
