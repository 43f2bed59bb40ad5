/* Which ops a GPU runs as one kernel: forward a linear and the GELU behind it, backward a linear
 * and the GELU before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "tests/graph/model/model_text.h"

/* A linear and the gelu that alone reads it, on CUDA. */
static void test_graph_fused(void **state)
{
    (void)state;
    static const struct {
        const char *ops;
        int32_t first; /* -1: none */
    } cases[] = {
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}",
         0},
        {"{op: linear, name: l, in: x, out: h, features: 16}, "
         "{op: gelu, name: g, in: h, out: y, approximate: erf}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: x, out: y}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: relu, name: g, in: h, out: y}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: relu, name: r, in: x, out: z}, "
         "{op: gelu, name: g, in: h, out: y}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: add, name: a, in: [h, y], out: y}",
         -1},
        {"{op: relu, name: r, in: x, out: z}, {op: linear, name: l, in: z, out: h, features: 16}, "
         "{op: gelu, name: g, in: h, out: y}, {op: linear, name: m, in: y, out: y, features: 16}",
         1},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "smp: 1\nname: p\ninputs: {x: {dtype: float32, shape: [4, 16]}}\nops: [%s]\n",
                 cases[k].ops);
        smp_graph *g = read_model(text);
        for (int32_t i = 0; i < g->n_op; i++)
            assert_false(smp_op_fused(g, i));
        assert_int_equal(SMP_OK, smp_graph_set_target(g, (smp_target){SMP_BACKEND_CUDA, 0}));
        for (int32_t i = 0; i < g->n_op; i++)
            if (smp_op_fused(g, i) != (i == cases[k].first))
                fail_msg("case %zu, op %d", k, (int)i);
        smp_graph_destroy(g);
    }
}

/* A gelu that one linear reads, alone, on CUDA, where gradients are made. */
static void test_graph_fused_backward(void **state)
{
    (void)state;
    static const struct {
        const char *ops;
        int32_t first; /* -1: none */
    } cases[] = {
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: linear, name: m, in: y, out: y, features: 3}",
         1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, "
         "{op: gelu, name: g, in: h, out: y, approximate: erf}, "
         "{op: linear, name: m, in: y, out: y, features: 3}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 12}, {op: gelu, name: g, in: h, out: y}, "
         "{op: linear, name: m, in: y, out: y, features: 3}",
         -1},
        {"{op: gelu, name: g, in: x, out: y}, {op: linear, name: m, in: y, out: y, features: 3}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: relu, name: r, in: x, out: z}, {op: linear, name: m, in: y, out: y, features: 3}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: linear, name: m, in: y, out: z, features: 16}, {op: add, name: a, in: [z, h], out: "
         "o}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: linear, name: m, in: y, out: z, features: 16}, {op: add, name: a, in: [z, y], out: "
         "o}",
         -1},
    };
    for (size_t k = 0; k < 2 * sizeof cases / sizeof cases[0]; k++) {
        const bool trains = k % 2;
        char text[1024];
        snprintf(text, sizeof text,
                 "smp: 1\nname: p\n%sinputs: {x: {dtype: float32, shape: [4, 16]}}\nops: [%s]\n",
                 trains ? "" : "mode: inference\n", cases[k / 2].ops);
        smp_graph *g = read_model(text);
        for (int32_t i = 0; i < g->n_op; i++)
            assert_false(smp_op_fused_backward(g, i));
        assert_int_equal(SMP_OK, smp_graph_set_target(g, (smp_target){SMP_BACKEND_CUDA, 0}));
        for (int32_t i = 0; i < g->n_op; i++) {
            if (smp_op_fused_backward(g, i) != (trains && i == cases[k / 2].first))
                fail_msg("case %zu, op %d", k, (int)i);
            assert_int_equal(smp_op_tied(g, i), smp_op_fused(g, i) || smp_op_fused_backward(g, i));
        }
        smp_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_fused),
        cmocka_unit_test(test_graph_fused_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
