/* What a rank with a large vocabulary saves by a loss in chunks: the logits and their gradient, but
 * for a chunk. */
#include "tests/schedule/fixture.h"

#define MODEL                                                                                      \
    "smp: 1\nname: vocabulary\nlet: {T: 8192, V: 32768}\n"                                         \
    "inputs: {tokens: {dtype: int32, shape: [T]}, targets: {dtype: int32, shape: [T]}}\n"          \
    "ops:\n"                                                                                       \
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: V, features: 16}\n"                  \
    "  - {op: layernorm, name: ln, in: x, out: x}\n"                                               \
    "  - {op: linear, name: head, in: x, out: y, features: V, bias: false, weight: wte.weight}\n"  \
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: l}\nloss: l\n"

/* Of F and B of one micro-batch. */
static int64_t peak_bytes(const smp_graph *graph, int64_t batch)
{
    int32_t stage[4] = {0};
    smp_program program = {0};
    smp_flow *flow;
    smp_layout *layout;
    smp_memory_rank *memory;
    assert_int_equal(SMP_OK, smp_flow_build(graph, stage, 1, batch, &flow));
    assert_int_equal(SMP_OK, smp_layout_build(graph, flow, 0, false, NULL, NULL, &layout));
    assert_int_equal(SMP_OK, smp_program_push(&program, SMP_ACTION_F, 0, 0));
    assert_int_equal(SMP_OK, smp_program_push(&program, SMP_ACTION_B, 0, 0));
    assert_int_equal(
        SMP_OK, smp_memory_plan(&(smp_memory_input){.graph = graph,
                                                    .flow = flow,
                                                    .program = &program,
                                                    .stage_of_chunk = (int[]){0},
                                                    .stage_rank = (int[]){0},
                                                    .layout = (const smp_layout *const[]){layout},
                                                    .chunks = 1,
                                                    .microbatches = 1,
                                                    .ddp = 1,
                                                    .blocks = 1,
                                                    .sharding = {.shard = 1},
                                                    .optimizer_states = 2},
                                &memory));
    const int64_t bytes = memory->arena_bytes;
    smp_memory_destroy(memory);
    smp_layout_destroy(layout);
    smp_flow_destroy(flow);
    smp_program_free(&program);
    return bytes;
}

static void test_chunked_loss_saves_logits(void **state)
{
    (void)state;
    static const smp_target targets[] = {{SMP_BACKEND_CPU, SMP_PRECISION_FP32},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_BF16}};
    const int64_t logits = 8192 * 32768, chunk = 1 << 27, little = 2 << 20;
    for (int t = 0; t < 2; t++)
        for (int64_t batch = 1; batch <= 2; batch++) {
            const int64_t each = t == 0 ? 4 : 2;
            smp_graph *whole = NULL, *chunks = NULL;
            assert_int_equal(SMP_OK, smp_graph_parse("m", MODEL, strlen(MODEL), &whole));
            assert_int_equal(SMP_OK, smp_graph_parse("m", MODEL, strlen(MODEL), &chunks));
            assert_int_equal(SMP_OK, smp_graph_join(chunks));
            assert_int_equal(SMP_OK, smp_graph_set_target(whole, targets[t]));
            assert_int_equal(SMP_OK, smp_graph_set_target(chunks, targets[t]));
            const int64_t saved = peak_bytes(whole, batch) - peak_bytes(chunks, batch);
            const int64_t expected = (2 * batch * logits - chunk) * each;
            if (saved < expected - little || saved > expected + little)
                fail_msg("target %d, batch %d: %lld bytes saved, expected %lld", t, (int)batch,
                         (long long)saved, (long long)expected);
            smp_graph_destroy(whole);
            smp_graph_destroy(chunks);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunked_loss_saves_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
