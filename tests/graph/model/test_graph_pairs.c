/* Which ops a GPU runs as one kernel: forward a linear and the GELU behind it, backward a linear
 * and the GELU before it; with the bits of two kernels, forward a sum or a batchnorm and what is
 * behind it, and both ways a silu and the product behind it. And which batchnorm does the backward
 * of the relu behind it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "tests/graph/model/model_text.h"

/* On CUDA: a linear and the gelu that alone reads it; a sum of two and the norm of it, whoever else
 * reads it; a silu that is the first factor of a product, and not the other one too. */
static void test_graph_fused(void **state)
{
    (void)state;
    static const struct {
        const char *ops;
        int32_t first; /* -1: none */
        bool alike;
    } cases[] = {
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}",
         0, false},
        {"{op: relu, name: r, in: x, out: z}, {op: add, name: a, in: [x, z], out: y}, "
         "{op: layernorm, name: n, in: y, out: z}, {op: add, name: b, in: [y, z], out: y}",
         1, true},
        {"{op: add, name: a, in: [x, x], out: y}, {op: rmsnorm, name: n, in: y, out: z}", 0, true},
        {"{op: add, name: a, in: [x, x, x], out: y}, {op: rmsnorm, name: n, in: y, out: z}", -1},
        {"{op: add, name: a, in: [x, x], out: y}, {op: rmsnorm, name: n, in: x, out: z}", -1},
        {"{op: add, name: a, in: [x, x], out: y}, {op: relu, name: r, in: y, out: z}", 0, true},
        {"{op: add, name: a, in: [x, x], out: y}, {op: tanh, name: r, in: y, out: z}", -1},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: relu, name: r, in: y, out: z}", 0, true},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: relu, name: r, in: x, out: z}", -1},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: silu, name: r, in: y, out: z}", -1},
        {"{op: add, name: a, in: [x, x], out: y}, {op: groupnorm, name: n, in: y, out: z, groups: "
         "2}",
         -1},
        {"{op: silu, name: s, in: x, out: y}, {op: mul, name: m, in: [y, x], out: z}, "
         "{op: add, name: a, in: [y, z], out: z}",
         0, true},
        {"{op: silu, name: s, in: x, out: y}, {op: mul, name: m, in: [x, y], out: z}", -1},
        {"{op: silu, name: s, in: x, out: y}, {op: mul, name: m, in: [y, y], out: z}", -1},
        {"{op: sigmoid, name: s, in: x, out: y}, {op: mul, name: m, in: [y, x], out: z}", -1},
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
            if (smp_op_fused(g, i) != (i == cases[k].first) ||
                smp_op_tied_forward(g, i) != (i == cases[k].first && !cases[k].alike))
                fail_msg("case %zu, op %d", k, (int)i);
        smp_graph_destroy(g);
    }
}

/* On CUDA, where gradients are made: a gelu that one linear reads, alone; a silu that is the first
 * factor of a product which alone reads both. */
static void test_graph_fused_backward(void **state)
{
    (void)state;
    static const struct {
        const char *ops;
        int32_t first; /* -1: none */
        bool alike;
    } cases[] = {
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: gelu, name: g, in: h, out: y}, "
         "{op: linear, name: m, in: y, out: y, features: 3}",
         1, false},
        {"{op: linear, name: l, in: x, out: h, features: 16}, "
         "{op: linear, name: u, in: x, out: u, features: 16}, {op: silu, name: s, in: h, out: y}, "
         "{op: mul, name: m, in: [y, u], out: y}",
         2, true},
        {"{op: linear, name: l, in: x, out: h, features: 16}, {op: silu, name: s, in: h, out: y}, "
         "{op: mul, name: m, in: [y, h], out: y}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, "
         "{op: linear, name: u, in: x, out: u, features: 16}, {op: silu, name: s, in: h, out: y}, "
         "{op: mul, name: m, in: [y, u], out: z}, {op: add, name: a, in: [u, z], out: z}",
         -1},
        {"{op: linear, name: l, in: x, out: h, features: 16}, "
         "{op: linear, name: u, in: x, out: u, features: 16}, {op: silu, name: s, in: h, out: y}, "
         "{op: mul, name: m, in: [y, u], out: z}, {op: add, name: a, in: [y, z], out: z}",
         -1},
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
            const bool fused = trains && i == cases[k / 2].first, alike = cases[k / 2].alike;
            if (smp_op_fused_backward(g, i) != fused)
                fail_msg("case %zu, op %d", k, (int)i);
            assert_int_equal(smp_op_tied(g, i), smp_op_tied_forward(g, i) || (fused && !alike));
            if (i + 1 < g->n_op)
                assert_int_equal(fused && alike ? 2 : 3, smp_op_fused_reads(g, i + 1, 3));
        }
        smp_graph_destroy(g);
    }
}

/* On CUDA, where gradients are made: a batchnorm that a relu reads, alone, right behind it. */
static void test_graph_absorbs(void **state)
{
    (void)state;
    static const struct {
        const char *ops;
        bool absorbs;
    } cases[] = {
        {"{op: batchnorm, name: b, in: x, out: y}, {op: relu, name: r, in: y, out: z}", true},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: tanh, name: r, in: y, out: z}"},
        {"{op: groupnorm, name: b, in: x, out: y, groups: 1}, {op: relu, name: r, in: y, out: z}"},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: relu, name: r, in: x, out: z}"},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: tanh, name: t, in: x, out: w}, "
         "{op: relu, name: r, in: y, out: z}"},
        {"{op: batchnorm, name: b, in: x, out: y}, {op: relu, name: r, in: y, out: z}, "
         "{op: add, name: a, in: [y, z], out: z}"},
    };
    for (size_t k = 0; k < 2 * sizeof cases / sizeof cases[0]; k++) {
        const bool trains = k % 2, absorbs = trains && cases[k / 2].absorbs;
        char text[1024];
        smp_op_needs needs;
        snprintf(text, sizeof text,
                 "smp: 1\nname: p\n%sinputs: {x: {dtype: float32, shape: [4, 16]}}\nops: [%s]\n",
                 trains ? "" : "mode: inference\n", cases[k / 2].ops);
        smp_graph *g = read_model(text);
        for (int32_t i = 0; i < g->n_op; i++)
            assert_false(smp_op_absorbs(g, &g->op[i]));
        smp_op_needs_get(g, &g->op[1], 2, &needs);
        const uint32_t own = needs.input_grad_in | needs.input_grad_out;
        assert_int_equal(SMP_OK, smp_graph_set_target(g, (smp_target){SMP_BACKEND_CUDA, 0}));
        for (int32_t i = 0; i < g->n_op; i++)
            if (smp_op_absorbs(g, &g->op[i]) != (absorbs && i == 0) ||
                smp_op_passes_dout(g, &g->op[i]) !=
                    (g->op[i].kind->passes_dout || (absorbs && i == 1)))
                fail_msg("case %zu, op %d", k, (int)i);
        smp_op_needs_get(g, &g->op[1], 2, &needs);
        assert_int_equal(needs.input_grad_in | needs.input_grad_out, absorbs ? 0 : own);
        smp_graph_destroy(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_fused),
        cmocka_unit_test(test_graph_fused_backward),
        cmocka_unit_test(test_graph_absorbs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
