/* Optimizers: every registered one for descent, for independence of where an array is cut, and
 * against a reference in double; AdamW and SGD against values of PyTorch. */
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

static smp_update_settings make_settings(void)
{
    return (smp_update_settings){.lr = 1.0f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f,
                                 .momentum = 0.9f,
                                 .trust_coefficient = 0.2f};
}

/* An update of a whole weight in pieces of so many elements, with what goes before it. kept: what
 * is, for the whole of it. */
static void apply(const smp_optimizer *optimizer, const smp_update *whole, int64_t piece,
                  double *kept)
{
    static float direction[1 << 12];
    double squares[2] = {0};
    assert_true(whole->elements <= (int64_t)(sizeof direction / sizeof *direction));
    memcpy(direction, whole->grad, (size_t)whole->elements * sizeof(float));
    float trust = 1.0f;
    for (int pass = optimizer->trust ? 0 : 1; pass < 2; pass++) {
        for (int64_t begin = 0, n; begin < whole->elements; begin += n) {
            n = whole->elements - begin < piece ? whole->elements - begin : piece;
            smp_update u = *whole;
            u.weight += begin;
            u.grad = direction + begin;
            u.direction = pass == 0 ? direction + begin : NULL;
            u.elements = n;
            u.trust = trust;
            for (int k = 0; k < SMP_MAX_OPTIMIZER_STATES; k++)
                u.state[k] += begin;
            if (pass == 1)
                optimizer->update(&u);
            else if (optimizer->measure)
                optimizer->measure(&u);
        }
        for (int64_t i = 0; pass == 0 && i < whole->elements; i++) {
            squares[0] += (double)whole->weight[i] * whole->weight[i];
            squares[1] += (double)direction[i] * direction[i];
        }
        if (pass == 0) {
            smp_update u = *whole;
            u.kept = *kept;
            trust = smp_trust_of(optimizer, &u, squares[0], squares[1]);
            *kept = u.kept;
        }
    }
}

/* In [-1, 1), a function of its arguments. */
static float value(uint64_t stream, uint64_t i)
{
    return 2.0f * smp_random_uniform((uint32_t)smp_random_mix(stream << 32 | i)) - 1.0f;
}

/* References in double, all of a weight at a time. g: [N], scaled. */
typedef void reference(const smp_update_settings *o, double lr, int64_t step, const double *g,
                       double *w, double (*state)[2]);

static void adam_moments(const smp_update_settings *o, double g, double state[2])
{
    state[0] = o->beta1 * state[0] + (1 - (double)o->beta1) * g;
    state[1] = o->beta2 * state[1] + (1 - (double)o->beta2) * g * g;
}

static double adam_direction(const smp_update_settings *o, int64_t step, const double state[2])
{
    double m = state[0] / (1 - pow(o->beta1, (double)step));
    double v = state[1] / (1 - pow(o->beta2, (double)step));
    return m / (sqrt(v) + o->epsilon);
}

static double norm(const double *x)
{
    double sum = 0.0;
    for (int i = 0; i < N; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void reference_adamw(const smp_update_settings *o, double lr, int64_t step, const double *g,
                            double *w, double (*state)[2])
{
    for (int i = 0; i < N; i++) {
        w[i] -= lr * o->weight_decay * w[i];
        adam_moments(o, g[i], state[i]);
        w[i] -= lr * adam_direction(o, step, state[i]);
    }
}

static void reference_sgd(const smp_update_settings *o, double lr, int64_t step, const double *g,
                          double *w, double (*state)[2])
{
    (void)step;
    for (int i = 0; i < N; i++) {
        w[i] -= lr * o->weight_decay * w[i];
        state[i][0] = o->momentum * state[i][0] + g[i];
        w[i] -= lr * (o->nesterov ? g[i] + o->momentum * state[i][0] : state[i][0]);
    }
}

static void reference_lion(const smp_update_settings *o, double lr, int64_t step, const double *g,
                           double *w, double (*state)[2])
{
    (void)step;
    for (int i = 0; i < N; i++) {
        double c = o->beta1 * state[i][0] + (1 - (double)o->beta1) * g[i];
        w[i] -= lr * ((c > 0) - (c < 0) + o->weight_decay * w[i]);
        state[i][0] = o->beta2 * state[i][0] + (1 - (double)o->beta2) * g[i];
    }
}

static void reference_lamb(const smp_update_settings *o, double lr, int64_t step, const double *g,
                           double *w, double (*state)[2])
{
    double r[N];
    for (int i = 0; i < N; i++) {
        adam_moments(o, g[i], state[i]);
        r[i] = adam_direction(o, step, state[i]) + o->weight_decay * w[i];
    }
    double trust = norm(w) / norm(r);
    for (int i = 0; i < N; i++)
        w[i] -= lr * trust * r[i];
}

static void reference_lars(const smp_update_settings *o, double lr, int64_t step, const double *g,
                           double *w, double (*state)[2])
{
    (void)step;
    double size = norm(w);
    double trust = o->trust_coefficient * size / (norm(g) + o->weight_decay * size);
    for (int i = 0; i < N; i++) {
        state[i][0] = o->momentum * state[i][0] + lr * trust * (g[i] + o->weight_decay * w[i]);
        w[i] -= state[i][0];
    }
}

/* As NVIDIA's program of it: nvidia.github.io/OpenSeq2Seq, NeMo's novograd.py. The second moment of
 * the weight is in each element's. */
static void reference_novograd(const smp_update_settings *o, double lr, int64_t step,
                               const double *g, double *w, double (*state)[2])
{
    (void)step;
    const double squares = norm(g) * norm(g);
    for (int i = 0; i < N; i++) {
        double *v = &state[i][1];
        *v = *v == 0.0 ? squares : o->beta2 * *v + (1 - (double)o->beta2) * squares;
        double r = g[i] / (sqrt(*v) + o->epsilon) + o->weight_decay * w[i];
        state[i][0] = o->beta1 * state[i][0] + r;
        w[i] -= lr * state[i][0];
    }
}

static const struct {
    const char *name;
    reference *update;
} references[] = {{"adamw", reference_adamw}, {"sgd", reference_sgd},
                  {"lion", reference_lion},   {"lamb", reference_lamb},
                  {"lars", reference_lars},   {"novograd", reference_novograd}};

/* Names are found, unique and described; states are no more than memory is planned for. */
static void test_optimizer_registry(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        const char *name = (*o)->name;
        if (smp_optimizer_find(name) != *o)
            fail_msg("%s: two optimizers of that name", name);
        if (!(*o)->update || !(*o)->summary || (*o)->states < 0 ||
            (*o)->states > SMP_MAX_OPTIMIZER_STATES || ((*o)->measure && !(*o)->trust))
            fail_msg("%s: no update, no summary, or %d states", name, (*o)->states);
    }
    assert_string_equal(smp_options_default().optimizer.name, smp_optimizers()[0]->name);
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
        smp_update_settings settings = make_settings();
        settings.trust_coefficient = 0.1f;
        smp_update update = {.weight = weight,
                             .grad = grad,
                             .state = {states[0], states[1]},
                             .elements = WEIGHTS,
                             .grad_scale = 1.0f,
                             .settings = &settings};
        for (int i = 0; i < WEIGHTS; i++)
            weight[i] = value(3, (uint64_t)i);
        double kept = 0.0;
        for (update.step = 1; update.step <= LONG; update.step++) {
            for (int i = 0; i < WEIGHTS; i++)
                grad[i] = weight[i] - value(4, (uint64_t)i);
            update.lr = 0.05f * (float)(LONG - update.step) / LONG;
            apply(*o, &update, WEIGHTS, &kept);
        }
        for (int i = 0; i < WEIGHTS; i++)
            if (!(fabsf(weight[i] - value(4, (uint64_t)i)) < 1e-2f))
                fail_msg("%s: weight %d is %g, the minimum is at %g", (*o)->name, i,
                         (double)weight[i], (double)value(4, (uint64_t)i));
    }
}

static void check_reference(const smp_optimizer *optimizer, reference *update, float decay,
                            bool nesterov)
{
    static float weight[N], grad[N], states[2][N];
    static double ref_weight[N], ref_grad[N], ref_state[N][2];
    smp_update_settings settings = make_settings();
    settings.weight_decay = decay;
    settings.nesterov = nesterov;
    memset(states, 0, sizeof states);
    memset(ref_state, 0, sizeof ref_state);
    double kept = 0.0;
    for (int i = 0; i < N; i++)
        ref_weight[i] = weight[i] = value(1, (uint64_t)i);
    for (int64_t step = 1; step <= STEPS; step++) {
        const float scale = step % 3 ? 1.0f : 0.37f;
        const float lr = 0.01f * (float)step / STEPS;
        for (int i = 0; i < N; i++) {
            grad[i] = 3.0f * value(1 + (uint64_t)step, (uint64_t)i);
            ref_grad[i] = (double)grad[i] * scale;
        }
        apply(optimizer,
              &(smp_update){.weight = weight,
                            .grad = grad,
                            .state = {states[0], states[1]},
                            .elements = N,
                            .grad_scale = scale,
                            .lr = lr,
                            .step = step,
                            .settings = &settings},
              N, &kept);
        update(&settings, lr, step, ref_grad, ref_weight, ref_state);
    }
    for (int i = 0; i < N; i++) {
        if (!(fabs(weight[i] - ref_weight[i]) < 3e-6))
            fail_msg("%s: weight %d is %.9g, expected %.9g", optimizer->name, i, (double)weight[i],
                     ref_weight[i]);
        for (int s = 0; s < optimizer->states; s++)
            assert_true(fabs(states[s][i] - ref_state[i][s]) < 2e-5 * (1 + fabs(ref_state[i][s])));
    }
    assert_true(!optimizer->keep || fabs(kept - ref_state[0][1]) < 1e-6 * ref_state[0][1]);
}

static void test_optimizer_matches_reference(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        size_t r = 0;
        while (strcmp(references[r].name, (*o)->name) != 0)
            assert_true(++r < sizeof references / sizeof *references);
        for (int way = 0; way < 4; way++)
            check_reference(*o, references[r].update, way % 2 ? 0.3f : 0.0f, way / 2);
    }
}

/* A weight's bits do not depend on what lies beside it: whole array against odd pieces. */
static void test_optimizer_is_elementwise(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        static float arrays[2][3][N], grad[N];
        smp_update_settings settings = make_settings();
        settings.weight_decay = 0.1f;
        memset(arrays, 0, sizeof arrays);
        double kept[2] = {0};
        for (int i = 0; i < N; i++)
            arrays[0][0][i] = arrays[1][0][i] = value(7, (uint64_t)i);
        for (int64_t step = 1; step <= 5; step++) {
            for (int i = 0; i < N; i++)
                grad[i] = value(70 + (uint64_t)step, (uint64_t)i);
            for (int way = 0; way < 2; way++)
                apply(*o,
                      &(smp_update){.weight = arrays[way][0],
                                    .grad = grad,
                                    .state = {arrays[way][1], arrays[way][2]},
                                    .elements = N,
                                    .grad_scale = 0.7f,
                                    .lr = 0.01f,
                                    .step = step,
                                    .settings = &settings},
                      way == 0 ? N : 2 * step + 1, &kept[way]);
        }
        if (memcmp(arrays[0], arrays[1], sizeof arrays[0]) != 0)
            fail_msg("%s: other bits where an array is cut", (*o)->name);
    }
}

/* No norm, no ratio; a direction next to nothing is no rate that is not a number. */
static void test_optimizer_trust_of_extremes(void **state)
{
    (void)state;
    const smp_update_settings settings = make_settings();
    smp_update u = {.grad_scale = 1.0f, .settings = &settings};
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        if (!(*o)->trust || (*o)->keep)
            continue;
        assert_true(smp_trust_of(*o, &u, 0.0, 1.0) == 1.0f);
        assert_true(smp_trust_of(*o, &u, 1.0, 0.0) == 1.0f);
        assert_true(isfinite(1e6f * smp_trust_of(*o, &u, 1e30, 1e-90)));
    }
    assert_true(smp_trust_of(smp_optimizer_find("lamb"), &u, 9.0, 4.0) == 1.5f);
}

/* A gradient of zeroes leaves the second moment to the first one that is not, and nothing is
 * infinite without an epsilon. */
static void test_optimizer_novograd_of_zeroes(void **state)
{
    (void)state;
    const smp_update_settings settings = {.beta1 = 0.95f, .beta2 = 0.98f};
    const smp_optimizer *novograd = smp_optimizer_find("novograd");
    smp_update u = {.grad_scale = 0.5f, .settings = &settings};
    assert_true(isfinite(smp_trust_of(novograd, &u, 1.0, 0.0)));
    assert_true(u.kept == 0.0);
    assert_true(smp_trust_of(novograd, &u, 0.0, 16.0) == 0.5f);
    assert_true(u.kept == 4.0);
    smp_trust_of(novograd, &u, 1.0, 0.0);
    assert_true(fabs(u.kept - 4.0 * 0.98) < 1e-6);
}

static const float torch_start[5] = {0.5f, -1.25f, 2.0f, 0.0f, -0.75f};
static const float torch_grad[3][5] = {{0.1f, -0.2f, 0.3f, -0.4f, 0.5f},
                                       {0.05f, 0.4f, -0.3f, 1e-4f, 0.25f},
                                       {-0.6f, 0.1f, 0.0f, 2.0f, -0.125f}};

static void check_torch(const char *name, float lr, float decay, bool nesterov,
                        float expected[3][5])
{
    float weight[5], states[2][5] = {{0}};
    smp_update_settings settings = make_settings();
    settings.weight_decay = decay;
    settings.nesterov = nesterov;
    memcpy(weight, torch_start, sizeof weight);
    for (int step = 1; step <= 3; step++) {
        smp_optimizer_find(name)->update(&(smp_update){.weight = weight,
                                                       .grad = torch_grad[step - 1],
                                                       .state = {states[0], states[1]},
                                                       .elements = 5,
                                                       .grad_scale = 1.0f,
                                                       .lr = lr,
                                                       .step = step,
                                                       .settings = &settings});
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
    check_torch("adamw", 0.01f, 0.1f, false, expected);
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
    float ahead[3][5] = {/* nesterov=True, of PyTorch 2.15 */
                         {0.481000006f, -1.21200001f, 1.94299996f, 0.0759999976f, -0.845000029f},
                         {0.463400006f, -1.27180004f, 1.97570002f, 0.108380996f, -0.933000028f},
                         {0.566060007f, -1.3086201f, 1.97812998f, -0.242467105f, -0.965950012f}};
    check_torch("sgd", 0.1f, 0.0f, false, plain);
    check_torch("sgd", 0.1f, 0.1f, false, decayed);
    check_torch("sgd", 0.1f, 0.0f, true, ahead);
}

/* Large steps: 1 - beta^t must go to 1, not to 0 / 0. */
static void test_optimizer_adamw_late_step_is_finite(void **state)
{
    (void)state;
    float weight = 1.0f, grad = 0.0f, mean = 0.0f, square = 0.0f;
    const smp_update_settings settings = make_settings();
    smp_optimizer_find("adamw")->update(&(smp_update){.weight = &weight,
                                                      .grad = &grad,
                                                      .state = {&mean, &square},
                                                      .elements = 1,
                                                      .grad_scale = 1.0f,
                                                      .lr = 0.01f,
                                                      .step = INT64_C(1) << 40,
                                                      .settings = &settings});
    assert_true(weight == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizer_registry),
        cmocka_unit_test(test_optimizer_descends),
        cmocka_unit_test(test_optimizer_matches_reference),
        cmocka_unit_test(test_optimizer_is_elementwise),
        cmocka_unit_test(test_optimizer_trust_of_extremes),
        cmocka_unit_test(test_optimizer_novograd_of_zeroes),
        cmocka_unit_test(test_optimizer_adamw_matches_torch),
        cmocka_unit_test(test_optimizer_sgd_matches_torch),
        cmocka_unit_test(test_optimizer_adamw_late_step_is_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
