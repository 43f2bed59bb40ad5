/* The profile file: what is written reads back equal; broken files name their place. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "profile/profile.h"

enum { N_OP = 3, N_POINT = 4 };

static const char model[] = "smp: 1\n"
                            "name: mlp\n"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [4]}\n"
                            "  y: {dtype: float32, shape: [2]}\n"
                            "ops:\n"
                            "  - {op: linear, name: a, in: x, out: h, features: 3}\n"
                            "  - {op: linear, name: b, in: h, out: h, features: 2}\n"
                            "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
                            "loss: loss\n";

static char folder[64], path[128];
static smp_graph *graph;

/* Numbers without a short decimal form. */
static void fill_costs(smp_op_cost *cost)
{
    for (int i = 0; i < N_OP; i++)
        cost[i] = (smp_op_cost){.forward_us = sqrt(2.0 + i),
                                .backward_us = 1e5 / (3 + i),
                                .backward_input_us = 1e-7 / (7 + i),
                                .backward_weight_us = i == 0 ? 0 : 123456789.123456789 * i,
                                .weight_bytes = 12345678901234 + i,
                                .stash_bytes = (int64_t)1 << 60,
                                .output_bytes = i,
                                .workspace_bytes = 64 * i};
}

static smp_profile make_profile(smp_op_cost *cost, bool link)
{
    static const char *const names[] = {"a", "b", "loss"};
    static const int64_t bytes[N_POINT] = {8, 4096, 1 << 20, (int64_t)1 << 40};
    static const double us[N_POINT] = {0.1, 1.0 / 3, 1e2 / 7, 1e9 / 11};
    static const double spread[N_OP] = {0, -1, 1.0 / 3}; /* not known of b */
    static const smp_gemm_choice choice[] = {
        {"nt 1x2x3 fp32 \"quoted\"", "id 6: 42", 1e2 / 3, 1e3 / 7},
        {"tn 1x1x1 fp32", "apart", 0, 0}};
    fill_costs(cost);
    smp_profile profile = {.model = "mlp \"quoted\"",
                           .fingerprint = graph->fingerprint,
                           .device = "cpu",
                           .dtype = "fp32",
                           .microbatch_size = 4,
                           .n_op = N_OP,
                           .name = names,
                           .op = cost,
                           .spread = spread,
                           .optimizer_bytes_per_s = 1e10 / 3,
                           .bf16_states = link,
                           .reduce_bytes_per_s = 1e10 / 7,
                           .core_switch_us = link ? 1e3 / 7 : 0,
                           .keep_bytes_per_s = link ? 1.5e9 : 0,
                           .scatter = link ? 1.0 / 7 : 0,
                           .launch = {link ? 2.5 : 0, link ? 1e2 / 7 : 0, link ? 0.125 : 0}};
    if (link)
        profile.products = (smp_gemm_choices){"A GPU", "a library", 2, choice};
    for (int kind = 0; link && kind < SMP_LINK_KINDS; kind++)
        profile.link[kind] = (smp_link_spec){.latency_us = 0.1 + kind,
                                             .bytes_per_s = 1e10 / 9,
                                             .n_point = N_POINT,
                                             .point_bytes = bytes,
                                             .point_us = us};
    return profile;
}

static void assert_cost_equal(const smp_op_cost *a, const smp_op_cost *b)
{
    assert_true(a->forward_us == b->forward_us && a->backward_us == b->backward_us);
    assert_true(a->backward_input_us == b->backward_input_us);
    assert_true(a->backward_weight_us == b->backward_weight_us);
    assert_true(a->weight_bytes == b->weight_bytes && a->stash_bytes == b->stash_bytes);
    assert_true(a->output_bytes == b->output_bytes && a->workspace_bytes == b->workspace_bytes);
}

static void round_trip(bool link)
{
    smp_op_cost cost[N_OP];
    const smp_profile written = make_profile(cost, link);
    smp_profile *read = NULL;
    smp_text first = {0}, second = {0};
    assert_int_equal(smp_profile_write(&written, path), SMP_OK);
    if (smp_profile_read(path, graph, &read) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_string_equal(read->model, written.model);
    assert_string_equal(read->device, "cpu");
    assert_string_equal(read->dtype, "fp32");
    assert_true(read->fingerprint == written.fingerprint);
    assert_int_equal(read->microbatch_size, 4);
    assert_int_equal(read->n_op, N_OP);
    assert_true(read->optimizer_bytes_per_s == written.optimizer_bytes_per_s);
    assert_true(read->reduce_bytes_per_s == written.reduce_bytes_per_s);
    assert_true(read->bf16_states == written.bf16_states);
    assert_true(read->core_switch_us == written.core_switch_us);
    assert_true(read->keep_bytes_per_s == written.keep_bytes_per_s);
    assert_true(read->scatter == written.scatter);
    assert_memory_equal(&read->launch, &written.launch, sizeof read->launch);
    for (int i = 0; i < N_OP; i++) {
        assert_string_equal(read->name[i], written.name[i]);
        assert_cost_equal(&read->op[i], &written.op[i]);
        assert_true(read->spread[i] == written.spread[i]);
    }
    for (int kind = 0; kind < SMP_LINK_KINDS; kind++) {
        const smp_link_spec *a = &read->link[kind], *b = &written.link[kind];
        assert_int_equal(a->n_point, b->n_point);
        assert_true(a->latency_us == b->latency_us && a->bytes_per_s == b->bytes_per_s);
        for (int i = 0; i < a->n_point; i++) {
            assert_true(a->point_bytes[i] == b->point_bytes[i]);
            assert_true(a->point_us[i] == b->point_us[i]);
        }
    }
    assert_int_equal(read->products.n, written.products.n);
    for (int i = 0; i < read->products.n; i++) {
        const smp_gemm_choice *a = &read->products.choice[i], *b = &written.products.choice[i];
        assert_string_equal(a->product, b->product);
        assert_string_equal(a->algorithm, b->algorithm);
        assert_true(a->us == b->us && a->first_us == b->first_us);
    }
    assert_int_equal(smp_profile_format(&written, &first), SMP_OK);
    assert_int_equal(smp_profile_format(read, &second), SMP_OK);
    assert_string_equal(first.data, second.data);
    smp_text_free(&first);
    smp_text_free(&second);
    smp_profile_destroy(read);
}

static void test_profile_reads_back_what_was_written(void **state)
{
    (void)state;
    round_trip(false);
    round_trip(true);
}

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A short file written by hand, with one line replaced (0: none). */
static char *hand_written(int line, const char *replacement)
{
    static char text[4096];
    char fingerprint[64];
    snprintf(fingerprint, sizeof fingerprint, "model: {name: m, fingerprint: %016llx}",
             (unsigned long long)graph->fingerprint);
    const char *lines[] = {"smp: 1",
                           fingerprint,
                           "device: cpu",
                           "dtype: fp32",
                           "microbatch_size: 2",
                           "ops:",
                           "- {name: b, forward_us: 4, backward_us: 10}",
                           "- {name: loss, forward_us: 1, backward_us: 3}",
                           "- {name: a, forward_us: 2, backward_us: 5, weight_bytes: 1KiB}",
                           "links: {intra_node: {latency_us: 1, bytes_per_s: 1e9, points: []}}"};
    size_t used = 0;
    for (int i = 0; i < (int)(sizeof lines / sizeof lines[0]); i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\n",
                                 i + 1 == line ? replacement : lines[i]);
    return text;
}

static void test_profile_reads_any_order_and_fills_in(void **state)
{
    smp_profile *p = NULL;
    (void)state;
    write_text(hand_written(0, NULL));
    if (smp_profile_read(path, graph, &p) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_string_equal(p->name[0], "a"); /* graph order */
    assert_true(p->op[0].forward_us == 2 && p->op[1].forward_us == 4 && p->op[2].forward_us == 1);
    assert_int_equal(p->op[0].weight_bytes, 1024);
    assert_true(p->op[1].backward_input_us == 5 && p->op[1].backward_weight_us == 5);
    assert_true(p->op[2].backward_input_us == 3 && p->op[2].backward_weight_us == 0);
    assert_true(p->optimizer_bytes_per_s == 0);
    assert_int_equal(p->link[SMP_LINK_INTRA_NODE].n_point, 0);
    smp_profile_destroy(p);
}

typedef struct broken {
    int line;
    const char *text;
    const char *where, *says;
} broken;

static const broken broken_files[] = {
    {1, "smp: 2", "1:6", "smp"},
    {2, "model: {fingerprint: \"00000000000000aa\"}", "2:8", "'name' is missing"},
    {2, "model: {name: m, fingerprint: 12}", "2:31", "16 hexadecimal digits"},
    {2, "model: {name: m, fingerprint: 000000000000000g}", "2:31", "16 hexadecimal digits"},
    {2, "model: {name: m, fingerprint: 0x00000000000000}", "2:31", "16 hexadecimal digits"},
    {2, "model: {name: m, fingerprint: 0123456789abcdef}", "2:31", "another model"},
    {3, "devise: cpu", "3:1", "device"},
    {3, "", "1:1", "'device' is missing"},
    {4, "dtype: fp4", "4:8", "dtype: got 'fp4', expected fp32, tf32, bf16, fp16 or fp8"},
    {4, "dtype: tf32", "4:8", "expected fp32, bf16, fp16 or fp8, which the CPU has"},
    {5, "microbatch_size: 0", "5:18", "microbatch_size"},
    {5, "microbatch_size: 1.5", "5:18", "microbatch_size"},
    {7, "- {name: c, forward_us: 4, backward_us: 10}", "7:10", "no op of this name"},
    {7, "- {name: a, forward_us: 4, backward_us: 10}", "9:10", "listed twice"},
    {7, "", "8:1", "'b' of the model is missing"},
    {7, "- {name: b, backward_us: 10}", "7:3", "'forward_us' is missing"},
    {7, "- {name: b, forward_us: -4, backward_us: 10}", "7:25", "op 'b': forward_us"},
    {7, "- {name: b, forward_us: .nan, backward_us: 10}", "7:25", "op 'b': forward_us"},
    {7, "- {name: b, forward_us: 1e300, backward_us: 10}", "7:25", "op 'b': forward_us"},
    {7, "- {name: b, forward_us: 4, backward_us: 1, stash_bytes: -1}", "7:57", "stash_bytes"},
    {7, "- {name: b, forward_us: 4, backward_us: 1, stash_bytes: 9EB}", "7:57", "stash_bytes"},
    {7, "- {name: b, forward: 4, backward_us: 10}", "7:13", "forward_us"},
    {10, "links: {intra_node: {latency_us: 1, points: []}}", "10:21", "'bytes_per_s' is missing"},
    {10, "links: {intra_node: {latency_us: 1, bytes_per_s: 0, points: []}}", "10:50",
     "bytes_per_s"},
    {10, "links: {intra_node: {latency_us: 1, bytes_per_s: 1e-320, points: []}}", "10:50",
     "bytes_per_s"},
    {10, "optimizer_bytes_per_s: 1e-320", "10:24", "optimizer_bytes_per_s"},
    {10, "core_switch_us: -1", "10:17", "core_switch_us"},
    {10, "reduce_bytes_per_s: 1e-320", "10:21", "reduce_bytes_per_s"},
    {10, "launch: {kernel_us: 2, graph_us: 3}", "10:9", "'graph_kernel_us' is missing"},
    {10, "launch: {kernel_us: 2, graph_us: 3, kernel: 0}", "10:37", "kernel_us"},
    {10,
     "links: {intra_node: {latency_us: 1, bytes_per_s: 1, points: [{bytes: 8, us: 1}, "
     "{bytes: 8, us: 2}]}}",
     "10:89", "bytes"},
    {10, "links: {intra_node: {latency_us: 1, bytes_per_s: 1, points: [{bytes: 8}]}}", "10:62",
     "'us' is missing"},
    {10, "libraries: -1", "10:12", "libraries"},
    {10, "products: {format: 2, device: g, library: l, chosen: []}", "10:20", "format"},
    {10,
     "products: {format: 1, device: g, library: l, chosen: [{product: p, algorithm: a},\n"
     "  {product: q, algorithm: a}, {product: p, algorithm: b}]}",
     "11:41", "product 'p': got it twice, first at line 10"},
};

static void test_profile_refuses_broken_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken_files / sizeof broken_files[0]; i++) {
        const broken *b = &broken_files[i];
        smp_profile *p = NULL;
        char where[32];
        snprintf(where, sizeof where, "p.yaml:%s: ", b->where);
        write_text(hand_written(b->line, b->text));
        if (smp_profile_read(path, graph, &p) != SMP_ERR_INPUT || p ||
            !strstr(smp_last_error(), where) || !strstr(smp_last_error(), b->says))
            fail_msg("file %zu: got '%s', expected place %s and '%s'", i, smp_last_error(), where,
                     b->says);
    }
}

/* Of a card: another precision, and its memory. */
static void test_profile_of_a_card(void **state)
{
    static const char *const dtypes[] = {"fp32", "tf32", "bf16", "fp16", "fp8"};
    (void)state;
    for (int i = 0; i < SMP_N_PRECISION; i++) {
        smp_op_cost cost[N_OP];
        smp_profile written = make_profile(cost, false), *read = NULL;
        written.device = "NVIDIA H200, \"SXM\"";
        written.dtype = dtypes[i];
        written.memory_bytes = (int64_t)150 << 30;
        assert_int_equal(smp_profile_write(&written, path), SMP_OK);
        assert_int_equal(smp_profile_read(path, graph, &read), SMP_OK);
        assert_string_equal(read->device, written.device);
        assert_string_equal(read->dtype, dtypes[i]);
        assert_true(read->memory_bytes == written.memory_bytes);
        smp_target target = smp_profile_target(read);
        assert_int_equal(target.backend, SMP_BACKEND_CUDA);
        assert_int_equal(target.precision, i);
        assert_int_equal(smp_profile_check_target(read, target), SMP_OK);
        smp_profile_destroy(read);
    }
}

/* The device is called as its backend, or says so before its own name. */
static void test_profile_keeps_its_backend(void **state)
{
    static const char *const forms[] = {"%s", "%s: of a kind"};
    (void)state;
    for (int i = 0; i < 2 * SMP_N_BACKEND; i++) {
        char device[64];
        smp_op_cost cost[N_OP];
        smp_profile written = make_profile(cost, false), *read = NULL;
        snprintf(device, sizeof device, forms[i % 2], smp_backend_name((smp_backend)(i / 2)));
        written.device = device;
        assert_int_equal(smp_profile_write(&written, path), SMP_OK);
        assert_int_equal(smp_profile_read(path, graph, &read), SMP_OK);
        assert_int_equal(smp_profile_target(read).backend, i / 2);
        smp_profile_destroy(read);
    }
}

/* Where no cluster file is: CPUs of this machine, or the card that was measured. */
static void test_profile_makes_a_cluster(void **state)
{
    static const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    static const smp_target cuda = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    smp_op_cost cost[N_OP];
    smp_profile profile = make_profile(cost, true);
    smp_cluster *c = NULL;
    (void)state;
    assert_int_equal(smp_cluster_default(cpu, NULL, 3, &c), SMP_OK);
    assert_string_equal(c->device[2].name, "cpu");
    assert_true(c->cores_per_node > 0);
    assert_int_equal(c->intra_node.n_point, 0);
    assert_true(c->core_switch_us == SMP_DEFAULT_CORE_SWITCH_US && c->scatter == 0);
    smp_cluster_destroy(c);
    assert_int_equal(smp_cluster_default(cpu, &profile, 3, &c), SMP_OK);
    assert_true(c->core_switch_us == profile.core_switch_us);
    assert_true(c->scatter == profile.scatter && c->launch.kernel_us == 2.5);
    assert_int_equal(c->intra_node.n_point, profile.link[SMP_LINK_INTRA_NODE].n_point);
    assert_true(c->host.bytes_per_s == 0); /* a CPU's memory is the host's */
    smp_cluster_destroy(c);

    c = NULL;
    assert_int_equal(smp_cluster_default(cuda, NULL, 2, &c), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "--cluster"));
    profile.device = "card";
    profile.dtype = "bf16";
    assert_int_equal(smp_cluster_default(cuda, &profile, 2, &c), SMP_ERR_INPUT);
    assert_null(c);
    profile.memory_bytes = 1000000;
    assert_int_equal(smp_cluster_default(cuda, &profile, 0, &c), SMP_ERR_INPUT);
    assert_int_equal(smp_cluster_default(cuda, &profile, 2, &c), SMP_OK);
    assert_int_equal(smp_cluster_devices(c), 2);
    assert_string_equal(c->device[1].name, "card");
    assert_int_equal(c->device[1].memory_bytes, 1000000);
    assert_int_equal(c->cores_per_node, 0);
    assert_int_equal(c->intra_node.n_point, profile.link[SMP_LINK_INTRA_NODE].n_point);
    assert_int_equal(c->host.n_point, profile.link[SMP_LINK_HOST].n_point);
    assert_true(c->host.latency_us == profile.link[SMP_LINK_HOST].latency_us);
    smp_cluster_destroy(c);
}

static void test_profile_missing_file_is_bad_input(void **state)
{
    smp_profile *p = NULL;
    (void)state;
    unlink(path);
    assert_int_equal(smp_profile_read(path, graph, &p), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "p.yaml"));
    assert_null(p);
}

static int set_up(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.40s/smp-XXXXXX", base ? base : P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/p.yaml", folder);
    return smp_graph_parse("model.yaml", model, strlen(model), &graph) == SMP_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    smp_graph_destroy(graph);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_reads_back_what_was_written),
        cmocka_unit_test(test_profile_reads_any_order_and_fills_in),
        cmocka_unit_test(test_profile_refuses_broken_files),
        cmocka_unit_test(test_profile_missing_file_is_bad_input),
        cmocka_unit_test(test_profile_of_a_card),
        cmocka_unit_test(test_profile_keeps_its_backend),
        cmocka_unit_test(test_profile_makes_a_cluster),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
