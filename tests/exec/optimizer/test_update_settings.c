/* What updates take: schedules of the learning rate, against PyTorch's, and settings of single
 * weights. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/optimizer/lr_schedule.h"
#include "exec/optimizer/weights_like.h"

static void test_learning_rate_shape(void **state)
{
    (void)state;
    smp_optimizer_options o = {.lr = 1.0f, .min_lr = 0.1f, .warmup_steps = 10, .decay_steps = 110};
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
    smp_optimizer_options constant = {.lr = 0.3f, .min_lr = 0.1f};
    assert_true(smp_learning_rate(&constant, 1) == 0.3f);
    assert_true(smp_learning_rate(&constant, 1000000) == 0.3f);
    smp_optimizer_options warm = {.lr = 0.3f, .min_lr = 0.1f, .warmup_steps = 4};
    assert_true(smp_learning_rate(&warm, 2) == 0.15f);
    assert_true(smp_learning_rate(&warm, 5) == 0.3f);
    smp_optimizer_options decay = {.lr = 0.3f, .decay_steps = 100};
    assert_true(smp_learning_rate(&decay, 1) < 0.3f && smp_learning_rate(&decay, 1) > 0.299f);
    assert_true(smp_learning_rate(&decay, 100) == 0.0f);
    /* A decay that ends inside the warm-up leaves nothing but the floor after it. */
    smp_optimizer_options inside = {
        .lr = 0.3f, .min_lr = 0.1f, .warmup_steps = 20, .decay_steps = 10};
    assert_true(smp_learning_rate(&inside, 15) == (float)(0.3f * 15.0 / 20.0));
    assert_true(smp_learning_rate(&inside, 21) == 0.1f);
}

/* lr_scheduler.SequentialLR of PyTorch 2.15: LinearLR(start_factor=0.1, total_iters=9), then
 * ConstantLR, LinearLR(1, 0.1, 100), CosineAnnealingLR(100, 0.1), LambdaLR((10 / (10 + e))^0.5),
 * StepLR(25, 0.7) or ExponentialLR(0.7 ** 0.04); its epoch 0 is step 1. */
static void test_learning_rate_matches_torch(void **state)
{
    (void)state;
    enum { PLACES = 8 };
    static const int64_t step[PLACES] = {1, 5, 10, 11, 35, 60, 109, 110};
    static const struct {
        const char *name;
        int64_t decay_steps, decay_every;
        float rate[PLACES];
    } expected[] = {
        {"constant", 0, 0, {0.1f, 0.5f, 1, 1, 1, 1, 1, 1}},
        {"linear", 110, 0, {0.1f, 0.5f, 1, 0.991f, 0.775f, 0.55f, 0.109f, 0.1f}},
        {"cosine", 110, 0, {0.1f, 0.5f, 1, 0.999777952f, 0.868198052f, 0.55f, 0.100222048f, 0.1f}},
        {"inverse-sqrt",
         0,
         0,
         {0.1f, 0.5f, 1, 0.953462589f, 0.534522484f, 0.40824829f, 0.302891266f, 0.301511345f}},
        {"step", 0, 25, {0.1f, 0.5f, 1, 1, 0.7f, 0.49f, 0.343f, 0.2401f}},
        {"exponential", 0, 25, {0.1f, 0.5f, 1, 0.985834294f, 0.7f, 0.49f, 0.243550059f, 0.2401f}}};
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        const smp_optimizer_options o = {.lr = 1.0f,
                                         .min_lr = 0.1f,
                                         .warmup_steps = 10,
                                         .decay_steps = expected[k].decay_steps,
                                         .lr_schedule = expected[k].name,
                                         .decay_every = expected[k].decay_every,
                                         .gamma = expected[k].decay_every > 0 ? 0.7f : 0.0f};
        assert_int_equal(smp_lr_schedule_check(&o), SMP_OK);
        for (int i = 0; i < PLACES; i++)
            if (!(fabsf(smp_learning_rate(&o, step[i]) - expected[k].rate[i]) <= 1e-7f))
                fail_msg("%s, step %d: %.9g, expected %.9g", o.lr_schedule, (int)step[i],
                         (double)smp_learning_rate(&o, step[i]), (double)expected[k].rate[i]);
        assert_true(smp_learning_rate(&o, INT64_C(1) << 40) ==
                    (k == 0 ? 1.0f : 0.1f)); /* no lower than the floor */
    }
    assert_true(
        smp_learning_rate(&(smp_optimizer_options){.lr = 1.0f, .lr_schedule = "inverse-sqrt"}, 4) ==
        0.5f);
    const smp_optimizer_options tenth = {.lr = 1.0f, .lr_schedule = "step", .decay_every = 3};
    assert_true(smp_learning_rate(&tenth, 3) == 1.0f && smp_learning_rate(&tenth, 4) == 0.1f);
}

static void test_learning_rate_refuses(void **state)
{
    (void)state;
    smp_optimizer_options o = {.lr = 1.0f, .lr_schedule = "cosin"};
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "cosine"));
    o.lr_schedule = "linear";
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "--decay-steps"));
    o = (smp_optimizer_options){.lr = 1.0f, .lr_schedule = "inverse-sqrt", .decay_steps = 10};
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "--decay-steps"));
    o = (smp_optimizer_options){.lr = 1.0f, .lr_schedule = "step", .gamma = 0.5f};
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "--decay-every"));
    o = (smp_optimizer_options){.lr = 1.0f, .lr_schedule = "constant", .decay_every = 5};
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    o = (smp_optimizer_options){
        .lr = 1.0f, .lr_schedule = "exponential", .decay_every = 5, .gamma = 1.0f};
    assert_int_equal(smp_lr_schedule_check(&o), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "gamma 1, expected more than 0 and less than 1"));
}

/* Entries for the weights of a model: what a weight has then, or the message. */
typedef struct like {
    const char *optimizer, *entry[2];
    const char *weight;
    float lr, decay, beta1;
    const char *message; /* NULL: none */
} like;

static const like likes[] = {
    {"adamw", {NULL}, "wte.weight", 1, 0.1f, 0.9f, NULL},
    {"adamw", {NULL}, "h1.ln_1.bias", 1, 0, 0.9f, NULL},
    {"adamw", {"h*.ln*:weight-decay=0.2,lr=0.5"}, "h1.ln_1.bias", 0.5f, 0.2f, 0.9f, NULL},
    {"adamw", {"h*.ln*:weight-decay=0.2,lr=0.5"}, "wte.weight", 1, 0.1f, 0.9f, NULL},
    {"lamb", {"*:lr=2,beta1=0.5", "h1.*:lr=3"}, "h1.ln_1.bias", 3, 0, 0.5f, NULL},
    {"lamb", {"h1.*:lr=3", "*:lr=2,beta1=0.5"}, "h1.ln_1.bias", 2, 0, 0.5f, NULL},
    {"adamw", {"w?e.weight:lr=0"}, "wpe.weight", 0, 0.1f, 0.9f, NULL},
    {"adamw",
     {"wte.wieght:lr=1"},
     NULL,
     0,
     0,
     0,
     "weights-like:1:1: 'wte.wieght:lr=1': no trained "
     "weight of model 'gpt-tiny' matches 'wte.wieght', nearest is 'wte.weight'"},
    {"adamw",
     {"*:lr=1,beta3=1"},
     NULL,
     0,
     0,
     0,
     "weights-like:1:8: '*:lr=1,beta3=1': got key "
     "'beta3', nearest is 'beta1', optimizer 'adamw' has lr, weight-decay, beta1, beta2 or "
     "epsilon"},
    {"sgd", {"*:beta1=1"}, NULL, 0, 0, 0, "optimizer 'sgd' has lr, weight-decay or momentum"},
    {"lars", {"*:trust-coefficient=-1"}, NULL, 0, 0, 0, "got '-1', expected a number from 0"},
    {"sgd", {"*:momentum=1"}, NULL, 0, 0, 0, "got '1', expected a number from 0 to 0.999999"},
    {"sgd", {"*:lr=nan"}, NULL, 0, 0, 0, "got 'nan', expected a number"},
    {"sgd", {"*:lr=1,"}, NULL, 0, 0, 0, "weights-like:1:8: '*:lr=1,': got '', expected KEY=VALUE"},
    {"sgd", {"*:lr"}, NULL, 0, 0, 0, "expected KEY=VALUE"},
    {"sgd", {"*:"}, NULL, 0, 0, 0, "expected PATTERN:KEY=VALUE"},
    {"sgd", {":lr=1"}, NULL, 0, 0, 0, "expected PATTERN:KEY=VALUE"},
    {"sgd", {""}, NULL, 0, 0, 0, "expected PATTERN:KEY=VALUE"},
};

static void check_like(const like *c, const smp_graph *graph, smp_update_settings *settings)
{
    const smp_optimizer_options options = {.beta1 = 0.9f,
                                           .weight_decay = 0.1f,
                                           .weights_like = c->entry,
                                           .n_weights_like = !!c->entry[0] + !!c->entry[1]};
    const smp_status status =
        smp_weights_like(&options, smp_optimizer_find(c->optimizer), graph, settings);
    if (c->message) {
        assert_int_equal(status, SMP_ERR_INPUT);
        if (!strstr(smp_last_error(), c->message))
            fail_msg("%s: got '%s', expected '%s'", c->entry[0], smp_last_error(), c->message);
        return;
    }
    assert_int_equal(status, SMP_OK);
    int32_t i = 0;
    while (strcmp(graph->param[i].name, c->weight) != 0)
        assert_true(++i < graph->n_param);
    if (settings[i].lr != c->lr || settings[i].weight_decay != c->decay ||
        settings[i].beta1 != c->beta1)
        fail_msg("%s: %s has lr %g, decay %g, beta1 %g", c->entry[0], c->weight,
                 (double)settings[i].lr, (double)settings[i].weight_decay,
                 (double)settings[i].beta1);
}

static void test_weights_like(void **state)
{
    (void)state;
    smp_graph *graph = NULL;
    assert_int_equal(smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph), SMP_OK);
    smp_update_settings *settings = calloc((size_t)graph->n_param, sizeof *settings);
    assert_non_null(settings);
    for (size_t i = 0; i < sizeof likes / sizeof *likes; i++)
        check_like(&likes[i], graph, settings);
    assert_int_equal(smp_weights_like(&(smp_optimizer_options){.n_weights_like = 1},
                                      smp_optimizers()[0], graph, settings),
                     SMP_ERR_INPUT);
    free(settings);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learning_rate_shape),
        cmocka_unit_test(test_learning_rate_without_parts),
        cmocka_unit_test(test_learning_rate_matches_torch),
        cmocka_unit_test(test_learning_rate_refuses),
        cmocka_unit_test(test_weights_like),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
