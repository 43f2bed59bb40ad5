/* The CPU probe without MPI: every op of a model with most operators opens and takes time, in every
 * part it has; the numbers of a small model are plausible. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_EQUAL */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/device/device.h"
#include "exec/probe/probe.h"
#include "exec/probe/probe_op.h"
#include "graph/model/op.h"

enum { BATCH = 3 };
enum { TRIES = 20 }; /* whatever else runs on the machine only adds to a time */

static const char model[] =
    "smp: 1\n"
    "name: most\n"
    "%MODE%"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [8]}\n"
    "  targets: {dtype: int32, shape: [8]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: 16}\n"
    "  - {op: position_embedding, name: wpe, in: x, out: x}\n"
    "  - {op: layernorm, name: ln, in: x, out: a}\n"
    "  - {op: linear, name: qkv, in: a, out: a, features: 48}\n"
    "  - {op: attention, name: attn, in: a, out: a, heads: 2, causal: true}\n"
    "  - {op: dropout, name: drop, in: a, out: a, p: 0.1}\n"
    "  - {op: add, name: res, in: [x, a], out: x}\n"
    "  - {op: gelu, name: gelu, in: x, out: a}\n"
    "  - {op: tanh, name: tanh, in: x, out: b}\n"
    "  - {op: mul, name: mul, in: [a, b], out: a}\n"
    "  - {op: softmax, name: soft, in: a, out: a}\n"
    "  - {op: relu, name: relu, in: a, out: a}\n"
    "  - {op: linear, name: head, in: a, out: y, features: 32, bias: false, weight: wte.weight}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}\n"
    "loss: loss\n";

static smp_graph *parse(const char *mode)
{
    char text[4096];
    smp_graph *graph = NULL;
    const char *mark = strstr(model, "%MODE%");
    const size_t head = (size_t)(mark - model);
    memcpy(text, model, head);
    strcpy(text + head, mode);
    strcat(text, mark + strlen("%MODE%"));
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

static void check_part(const smp_probe *probe, const smp_op *op, smp_op_part part, bool runs)
{
    double us = -1;
    if (probe->time(probe->context, part, 3, &us) != SMP_OK)
        fail_msg("%s", smp_last_error());
    if (runs ? !(us > 0 && us < 1e6) : us != 0)
        fail_msg("op '%s' part %d: got %g us", op->name, (int)part, us);
}

static void open_every_op(const char *mode, bool training)
{
    smp_graph *graph = parse(mode);
    smp_probe *probe = NULL;
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    for (int32_t i = 0; i < graph->n_op; i++) {
        const smp_op *op = &graph->op[i];
        bool input = false;
        for (int32_t k = 0; k < op->n_in; k++)
            input = input || (graph->tensor[op->in[k]].needs_grad && !op->kind->passes_dout);
        if (probe->open(probe->context, graph, op, BATCH) != SMP_OK)
            fail_msg("%s", smp_last_error());
        check_part(probe, op, SMP_OP_FORWARD, true);
        check_part(probe, op, SMP_OP_BACKWARD_INPUT, training && input);
        check_part(probe, op, SMP_OP_BACKWARD_WEIGHT, training && op->n_param > 0);
        probe->close(probe->context);
    }
    smp_probe_destroy(probe);
    smp_graph_destroy(graph);
}

static void test_probe_times_every_part_of_an_op(void **state)
{
    (void)state;
    open_every_op("", true);
    open_every_op("mode: inference\n", false);
}

static smp_status sleep_40_ms(const smp_op_call *call)
{
    (void)call;
    return usleep(40000) == 0 ? SMP_OK : SMP_ERR_FAILED;
}

static smp_status sleep_10_ms(const smp_op_call *call)
{
    (void)call;
    return usleep(10000) == 0 ? SMP_OK : SMP_ERR_FAILED;
}

/* Where both halves of a backward are one call in training, they add up to that call. */
static void test_probe_times_a_backward_in_one_call(void **state)
{
    smp_graph *graph = parse("");
    smp_probe *probe = NULL;
    double us;
    (void)state;
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    const smp_op *op = &graph->op[smp_graph_find_op(graph, "ln")];
    assert_int_equal(probe->open(probe->context, graph, op, BATCH), SMP_OK);
    smp__probe_state *opened = probe->context;
    smp_op_kernels joined = *opened->kernels;
    joined.backward = sleep_40_ms;
    joined.backward_weight = sleep_10_ms;
    opened->kernels = &joined;
    assert_int_equal(probe->time(probe->context, SMP_OP_BACKWARD_WEIGHT, 1, &us), SMP_OK);
    assert_true(us >= 9e3);
    int again = TRIES;
    do
        assert_int_equal(probe->time(probe->context, SMP_OP_BACKWARD_INPUT, 1, &us), SMP_OK);
    while (!(us > 1e3 && us < 39e3) && --again > 0);
    assert_true(us > 1e3 && us < 39e3); /* neither the kernel of its own, nor the whole call */
    probe->close(probe->context);
    smp_probe_destroy(probe);
    smp_graph_destroy(graph);
}

/* Indices are those of a text: of 1,000 words the first makes log(2) / log(1001) = 0.100. */
static void test_probe_draws_indices_as_in_a_text(void **state)
{
    enum { N = 1 << 14, WORDS = 1000 };
    static int32_t index[N];
    smp_probe *probe = NULL;
    int count[WORDS] = {0}, seen = 0;
    (void)state;
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    assert_int_equal(smp__probe_fill_indices(probe->context, index, sizeof index, -1, WORDS - 1),
                     SMP_OK);
    for (int i = 0; i < N; i++) {
        assert_in_range(index[i], 0, WORDS - 1);
        seen += count[index[i]]++ == 0;
    }
    assert_in_range(count[0], N * 9 / 100, N * 11 / 100);
    assert_in_range(count[1], N * 5 / 100, N * 7 / 100);
    assert_true(seen > 900);
    for (int max = 0; max < 2; max++) { /* one and two values */
        memset(count, 0, sizeof count);
        assert_int_equal(smp__probe_fill_indices(probe->context, index, sizeof index, 0, max),
                         SMP_OK);
        for (int i = 0; i < N; i++) {
            assert_in_range(index[i], 0, max);
            count[index[i]]++;
        }
        assert_true(count[max] > N / 3);
    }
    smp_probe_destroy(probe);
}

static void test_probe_times_updates(void **state)
{
    smp_probe *probe = NULL;
    double small = 0, large = 0, add = 0;
    (void)state;
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    assert_int_equal(probe->time_optimizer(probe->context, 1 << 10, 20, &small), SMP_OK);
    assert_int_equal(probe->time_optimizer(probe->context, 1 << 20, 3, &large), SMP_OK);
    assert_int_equal(probe->time_reduce(probe->context, 1 << 20, 3, &add), SMP_OK);
    assert_true(small > 0 && add > 0 && large > 10 * small);
    for (int kind = 0; kind < SMP_LINK_HOST; kind++)
        assert_false(probe->has_link[kind]); /* one process has no peer, and nobody to wait for */
    assert_null(probe->sync);
    smp_probe_destroy(probe);
}

/* The far side is that of a job, a link of a known rate among them: memory and a file. */
static void test_probe_times_the_link_to_host_memory(void **state)
{
    static const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    const char *folders[] = {NULL, P_tmpdir};
    (void)state;
    assert_int_equal(setenv("SMP_THROTTLE_HOST", "1e7", 1), 0);
    for (int i = 0; i < 2; i++) {
        smp_probe *probe = NULL;
        double small = 0, large = 0, spent = 0;
        assert_int_equal(smp_probe_create(&cpu, folders[i], &probe), SMP_OK);
        assert_true(probe->has_link[SMP_LINK_HOST]);
        assert_int_equal(probe->time_link(probe->context, SMP_LINK_HOST, 8, 3, &small, &spent),
                         SMP_OK);
        int again = TRIES;
        do
            assert_int_equal(
                probe->time_link(probe->context, SMP_LINK_HOST, 1 << 18, 2, &large, &spent),
                SMP_OK);
        while (large >= 2 * (1 << 18) / 10.0 && --again > 0);
        if (!(small > 0 && large > (1 << 18) / 10.0 && large < 2 * (1 << 18) / 10.0 &&
              spent > large))
            fail_msg("folder %d: %g and %g us, %g in all", i, small, large, spent);
        smp_probe_destroy(probe);
    }
    assert_int_equal(unsetenv("SMP_THROTTLE_HOST"), 0);
    smp_probe *probe = NULL;
    double us, spent;
    assert_int_equal(smp_probe_create(&cpu, "/nowhere/at/all", &probe), SMP_OK);
    assert_int_equal(probe->time_link(probe->context, SMP_LINK_HOST, 8, 1, &us, &spent),
                     SMP_ERR_INPUT);
    smp_probe_destroy(probe);
}

/* Bounds that a busy machine keeps, too; the thread is as it was before. */
static void test_probe_times_core_switches(void **state)
{
    smp_probe *probe = NULL;
    double us = -1;
    cpu_set_t before, after;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    assert_int_equal(probe->time_core_switch(probe->context, 50, &us), SMP_OK);
    if (!(us > 0.1 && us < 2e4))
        fail_msg("got %g us", us);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    smp_probe_destroy(probe);
}

/* More than this machine has: refused before anything is reserved. */
static void test_probe_refuses_what_does_not_fit(void **state)
{
    static const char huge[] = "smp: 1\nname: h\nmode: inference\n"
                               "inputs:\n  x: {dtype: float32, shape: [1000000, 1000000]}\n"
                               "ops:\n  - {op: relu, name: big, in: x, out: y}\n";
    smp_graph *graph = NULL;
    smp_probe *probe = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("model.yaml", huge, strlen(huge), &graph), SMP_OK);
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    for (int64_t batch = 64; batch <= 1 << 20; batch <<= 7) {
        assert_int_not_equal(probe->open(probe->context, graph, &graph->op[0], batch), SMP_OK);
        assert_non_null(strstr(smp_last_error(), "big"));
    }
    smp_probe_destroy(probe);
    smp_graph_destroy(graph);
}

static void test_probe_measures_a_model(void **state)
{
    smp_graph *graph = parse("");
    smp_probe *probe = NULL;
    smp_profile *profile = NULL;
    const smp_profile_options options = {
        .microbatch_size = BATCH, .min_sample_us = 100, .samples = 3};
    (void)state;
    assert_int_equal(
        smp_probe_create(&(smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP32}, NULL, &probe), SMP_OK);
    if (smp_profile_measure(graph, probe, &options, &profile) != SMP_OK)
        fail_msg("%s", smp_last_error());
    for (int32_t i = 0; i < graph->n_op; i++)
        assert_true(profile->op[i].forward_us > 0 &&
                    (profile->op[i].backward_us > 0) ==
                        (graph->op[i].n_param > 0 || !graph->op[i].kind->passes_dout));
    assert_true(profile->optimizer_bytes_per_s > 1e6 && profile->reduce_bytes_per_s > 1e6);
    assert_string_equal(profile->device, "cpu");
    assert_true(profile->core_switch_us > 0);
    smp_profile_destroy(profile);
    smp_probe_destroy(probe);
    smp_graph_destroy(graph);
}

/* Whatever a device is called, profiles tell its backend. */
static void test_probe_names_a_device_of_any_backend(void **state)
{
    smp_device device = {.name = "abacus", .host_memory = true};
    char name[SMP_DEVICE_NAME_BYTES];
    (void)state;
    for (int i = 0; i < SMP_N_BACKEND; i++) {
        device.backend = (smp_backend)i;
        smp_device_profile_name(&device, NULL, name);
        assert_int_equal(smp_backend_of_device(name), i);
        assert_non_null(strstr(name, device.name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_times_every_part_of_an_op),
        cmocka_unit_test(test_probe_times_a_backward_in_one_call),
        cmocka_unit_test(test_probe_draws_indices_as_in_a_text),
        cmocka_unit_test(test_probe_times_updates),
        cmocka_unit_test(test_probe_times_the_link_to_host_memory),
        cmocka_unit_test(test_probe_times_core_switches),
        cmocka_unit_test(test_probe_refuses_what_does_not_fit),
        cmocka_unit_test(test_probe_measures_a_model),
        cmocka_unit_test(test_probe_names_a_device_of_any_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
