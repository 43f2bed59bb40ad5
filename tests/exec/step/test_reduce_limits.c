/* Weights and gradients that are too long for one reduction or message are refused before the first
 * step, by name: shapes and plans only, no memory of that size. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "exec/step/reduce.h"
#include "schedule/lower/lower.h"
#include "schedule/memory/memory.h"

enum { CHUNKS = 2, REPLICAS = 2, WIDE = 65536 };

/* One rank, of which no more is made than what reductions need. */
typedef struct rank_of_job {
    smp s;
    smp_plan_stage stage[CHUNKS];
    smp_program program;
    smp_transport transport;
} rank_of_job;

/* Two square products over two chunks of one rank, with one weight or each its own. */
static smp_graph *parse(int features, bool tied)
{
    smp_graph *graph = NULL;
    smp_text text = {0};
    smp_text_append(&text,
                    "smp: 1\nname: wide\ninputs:\n"
                    "  x: {dtype: float32, shape: [%d]}\n"
                    "  t: {dtype: float32, shape: [%d]}\n"
                    "ops:\n"
                    "  - {op: linear, name: a, in: x, out: y, features: %d, bias: false}\n"
                    "  - {op: linear, name: b, in: y, out: z, features: %d, bias: false%s}\n"
                    "  - {op: mse, name: loss, in: [z, t], out: loss}\n"
                    "loss: loss\n",
                    features, features, features, features, tied ? ", weight: a.weight" : "");
    if (smp_graph_parse("wide.yaml", text.data, text.length, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_text_free(&text);
    return graph;
}

static smp_status build(smp_graph *graph, int replicas, int64_t max_reduce_elements)
{
    static rank_of_job r;
    static int32_t stage_of_op[] = {0, 1, 1};
    static int stage_rank[CHUNKS];
    const smp_schedule_shape shape = {
        .pipeline = 1, .chunks = CHUNKS, .microbatches = 1, .training = true};
    smp_plan plan = {.pipeline = 1,
                     .ddp = replicas,
                     .chunks = CHUNKS,
                     .microbatches = 1,
                     .microbatch_size = 1,
                     .training = true,
                     .n_stage = CHUNKS,
                     .stage = r.stage,
                     .program = &r.program};
    smp_flow *flow = NULL;
    r = (rank_of_job){
        .transport = {.max_message_bytes = INT_MAX, .max_reduce_elements = max_reduce_elements}};
    assert_int_equal(smp_flow_build(graph, stage_of_op, CHUNKS, 1, &flow), SMP_OK);
    assert_int_equal(smp_lower(smp_schedule_find("simple"), &shape, flow, &r.program), SMP_OK);
    r.s = (smp){.comm = {.pipeline_size = 1, .ddp_size = replicas},
                .transport = &r.transport,
                .graph = graph,
                .plan = &plan,
                .stage_of_op = stage_of_op,
                .stage_rank = stage_rank,
                .flow = flow,
                .chunks = CHUNKS,
                .microbatches = 1};
    assert_int_equal(smp_memory_plan_rank(&plan, graph, flow, 0, 2, NULL, &r.s.memory), SMP_OK);
    smp_status status = smp__reduce_ties(&r.s);
    if (status == SMP_OK)
        status = smp__reduce_build(&r.s);
    smp__reduce_free(&r.s);
    smp_memory_destroy(r.s.memory);
    smp_program_free(&r.program);
    smp_flow_destroy(flow);
    return status;
}

static void test_reduce_refuses_a_tied_weight_that_is_too_long(void **state)
{
    (void)state;
    /* 2^32 elements: half of them are too many for an int */
    smp_graph *graph = parse(WIDE, true);
    assert_true(graph->param[0].elements > 2 * (int64_t)INT_MAX);
    assert_int_equal(build(graph, REPLICAS, INT_MAX), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "'a.weight'"));
    assert_non_null(strstr(smp_last_error(), "4294967296"));
    assert_int_equal(build(graph, 1, INT_MAX), SMP_OK); /* nothing is reduced */
    assert_int_equal(build(graph, REPLICAS, INT64_MAX), SMP_OK);
    smp_graph_destroy(graph);
}

/* What is reduced is padded, and that is what must not be too long. */
static void test_reduce_counts_the_padding(void **state)
{
    (void)state;
    smp_graph *graph = parse(33, true); /* 1089 elements, in units of 32: 1120 */
    assert_int_equal(build(graph, REPLICAS, 1119), SMP_ERR_FAILED);
    assert_int_equal(build(graph, REPLICAS, 1120), SMP_OK);
    smp_graph_destroy(graph);
    graph = parse(33, false);
    assert_int_equal(build(graph, REPLICAS, 1119), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "chunk 0 has 1120 gradients"));
    assert_int_equal(build(graph, REPLICAS, 1120), SMP_OK);
    smp_graph_destroy(graph);
}

static void test_reduce_refuses_a_chunk_that_is_too_long(void **state)
{
    (void)state;
    smp_graph *graph = parse(WIDE, false);
    assert_int_equal(build(graph, REPLICAS, INT_MAX), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "chunk 0"));
    assert_int_equal(build(graph, REPLICAS, INT64_MAX), SMP_OK);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_refuses_a_tied_weight_that_is_too_long),
        cmocka_unit_test(test_reduce_counts_the_padding),
        cmocka_unit_test(test_reduce_refuses_a_chunk_that_is_too_long),
    };
    return cmocka_run_group_tests_name("reduce_limits", tests, NULL, NULL);
}
