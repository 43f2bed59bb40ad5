/* The check of gradients: no alarm for any operator of the registry, whatever the seed; each way to
 * be wrong is found, in one element too, and named. */
#include "graph/ops/check_gradients.h"
#include "graph/ops/custom_op.h"
#include "tests/graph/ops/op_cases.h"

enum { SEEDS = 6, BATCH = 2 };

/* All gradients that the op of a model can have are asked for, also of the model's inputs. */
static smp_graph *open_whole(const char *text)
{
    smp_graph *graph = NULL;
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), text);
    const smp_op *op = &graph->op[graph->n_op - 1];
    for (int i = 0; i < op->n_in && smp_op_kind_passes_gradients(op->kind); i++)
        ((smp_tensor *)graph->tensor)[op->in[i]].needs_grad =
            graph->tensor[op->in[i]].dtype == SMP_F32;
    return graph;
}

static int check(const smp_graph *graph, uint64_t seed, smp_gradient_check *checks)
{
    int n = 0;
    if (smp_op_check_gradients(graph, &graph->op[graph->n_op - 1], BATCH, seed, checks, &n) !=
        SMP_OK)
        fail_msg("%s", smp_last_error());
    return n;
}

/* Kinks, ties, jumps and roundings are no errors. */
static void test_check_gradients_of_the_registry(void **state)
{
    (void)state;
    int told = 0, all = 0;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        if (!smp_op_kind_runs(*kind, SMP_BACKEND_CPU) || !(*kind)->sample)
            continue;
        const op_case c = op_case_of((*kind)->name);
        model_text m;
        uint64_t rng;
        op_case_begin(&c, 0, &m, &rng);
        model_write(&m, "%s", (*kind)->sample);
        smp_graph *graph = open_whole(m.yaml);
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            smp_gradient_check checks[SMP_MAX_GRADIENT_CHECKS];
            const int n = check(graph, seed, checks);
            for (int i = 0; i < n; i++) {
                if (checks[i].verdict >= SMP_GRADIENT_WRONG)
                    fail_msg("%s, seed %d: %s %d, element %lld: got %g, expected %g", (*kind)->name,
                             (int)seed, checks[i].of_param ? "weight" : "input", checks[i].slot,
                             (long long)checks[i].element, checks[i].got, checks[i].expected);
                told += checks[i].verdict == SMP_GRADIENT_RIGHT;
                all++;
            }
        }
        smp_graph_destroy(graph);
    }
    print_message("%d of %d gradients told\n", told, all);
    assert_true(told > 9 * all / 10 && all > 50 * SEEDS);
}

/* y = |x| w for one weight: a kink, and an error that a test turns on. */
static enum { NONE, ELEMENT, SIZE, UNWRITTEN, WEIGHT, NOT_ADDED, ZERO, N_ERROR } wrong;
enum { ELEMENTS = 300, AT = 123 };

static smp_status describe(smp_custom_node *node)
{
    node->n_weight = 1;
    node->weight[0] =
        (smp_custom_weight){.name = "w", .n_dim = 1, .dim = {1}, .init = SMP_CUSTOM_ONE};
    return SMP_OK;
}

static smp_status forward(const smp_custom_call *call)
{
    const float *x = call->in[0];
    for (int64_t i = 0; i < call->batch * ELEMENTS; i++)
        call->out[0][i] = fabsf(x[i]) * call->weight[0][0];
    return SMP_OK;
}

static smp_status backward_input(const smp_custom_call *call)
{
    const float *x = call->in[0];
    for (int64_t i = 0; i < call->batch * ELEMENTS; i++) {
        float slope = x[i] < 0 ? -call->weight[0][0] : call->weight[0][0];
        if (wrong == SIZE)
            slope *= 1.05f;
        if (wrong == ZERO)
            slope = 0;
        if (wrong == ELEMENT && i == AT)
            slope = -slope;
        if (wrong != UNWRITTEN || i != AT)
            call->in_grad[0][i] = call->out_grad[0][i] * slope;
    }
    return SMP_OK;
}

static smp_status backward_weight(const smp_custom_call *call)
{
    const float *x = call->in[0];
    float sum = 0;
    for (int64_t i = 0; i < call->batch * ELEMENTS; i++)
        sum += call->out_grad[0][i] * fabsf(x[i]);
    call->weight_grad[0][0] = (wrong == WEIGHT ? 1.1f : 1.0f) * sum +
                              (wrong == NOT_ADDED ? 0.0f : call->weight_grad[0][0]);
    return SMP_OK;
}

static void test_check_gradients_finds_errors(void **state)
{
    (void)state;
    static const smp_custom_op op = {.abi = SMP_CUSTOM_ABI,
                                     .size = sizeof op,
                                     .name = "magnitude",
                                     .summary = "|x| w",
                                     .min_inputs = 1,
                                     .max_inputs = 1,
                                     .describe = describe,
                                     .forward = forward,
                                     .backward_input = backward_input,
                                     .backward_weight = backward_weight};
    assert_int_equal(smp_op_register(&op), SMP_OK);
    smp_graph *graph = open_whole("smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [300]}\n"
                                  "ops:\n  - {op: magnitude, name: op, in: x, out: y}\n");
    for (wrong = NONE; wrong < N_ERROR; wrong++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            smp_gradient_check got[SMP_MAX_GRADIENT_CHECKS];
            assert_int_equal(check(graph, seed, got), 2);
            const bool input = wrong != NONE && wrong != WEIGHT && wrong != NOT_ADDED;
            assert_true(!got[0].of_param && got[1].of_param);
            assert_int_equal(got[0].verdict, input ? SMP_GRADIENT_WRONG : SMP_GRADIENT_RIGHT);
            assert_int_equal(got[1].verdict, wrong == WEIGHT      ? SMP_GRADIENT_WRONG
                                             : wrong == NOT_ADDED ? SMP_GRADIENT_NOT_ADDED
                                                                  : SMP_GRADIENT_RIGHT);
            if (wrong == ELEMENT || wrong == UNWRITTEN)
                assert_int_equal(got[0].element, AT);
            if (wrong == ELEMENT)
                assert_true(fabs(got[0].got + got[0].expected) < 1e-2);
        }
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_gradients_of_the_registry),
        cmocka_unit_test(test_check_gradients_finds_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
