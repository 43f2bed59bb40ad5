/* What a rank keeps of its weights for each target: all in fp32, and in bf16 a copy beside them, or
 * states of half the bytes; and what NCCL may take of a GPU besides. */
#include "tests/schedule/fixture.h"

#include "profile/costs.h"
#include "schedule/memory/communicators.h"

/* A rank that holds a whole model: what it needs for ever, and where the copies of weights lie. */
static void test_memory_target_weights(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: target\n"
        "inputs: {x: {dtype: float32, shape: [8, 64]}, y: {dtype: float32, shape: [8, 64]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: x, out: h, features: 64}\n"
        "  - {op: relu, name: b, in: h, out: h}\n"
        "  - {op: opaque, name: o, in: h, out: h, shape: [8, 64], cost: {forward_us: 1, "
        "weight_bytes: 64000}}\n"
        "  - {op: linear, name: c, in: h, out: h, features: 64, bias: false}\n"
        "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    static const smp_target targets[] = {{SMP_BACKEND_CPU, SMP_PRECISION_FP32},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_BF16},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_TF32},
                                         {SMP_BACKEND_CPU, SMP_PRECISION_FP32, true}};
    const int64_t elements = 64 * 64 + 64 + 64 * 64;
    int64_t stash[4], weights[4];
    int32_t stage[5] = {0};
    smp_graph *graph = NULL;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    for (int t = 0; t < 4; t++) {
        smp_program program = {0};
        smp_flow *flow;
        smp_layout *layout;
        smp_memory_rank *memory;
        assert_int_equal(SMP_OK, smp_graph_set_target(graph, targets[t]));
        assert_int_equal(SMP_OK, smp_flow_build(graph, stage, 1, 2, &flow));
        assert_int_equal(SMP_OK, smp_layout_build(graph, flow, 0, false, NULL, NULL, &layout));
        assert_int_equal(SMP_OK, smp_program_push(&program, SMP_ACTION_F, 0, 0));
        assert_int_equal(SMP_OK, smp_program_push(&program, SMP_ACTION_B, 0, 0));
        assert_int_equal(
            SMP_OK,
            smp_memory_plan(&(smp_memory_input){.graph = graph,
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
        bool bf16 = targets[t].precision == SMP_PRECISION_BF16;
        int64_t element = smp_weight_element_bytes(graph, 2);
        assert_int_equal((bf16 ? 18 : 16) - (targets[t].bf16_states ? 4 : 0), element);
        assert_int_equal(3, memory->n_param);
        const smp_memory_region *region = &memory->region[0];
        assert_int_equal(1, memory->n_region);
        assert_int_equal(bf16, region->weight16 >= 0);
        assert_int_equal(region->weight16, bf16 ? region->weight + 4 * region->elements : -1);
        assert_true(region->state[0] >= region->weight + (bf16 ? 6 : 4) * region->elements);
        stash[t] = layout->block_bytes[SMP_BLOCK_INPUT];
        int64_t work = memory->fixed_bytes - memory->work;
        weights[t] = memory->fixed_bytes - work - 64; /* but the loss slot */
        assert_int_equal(element * elements + 16000 * element, weights[t]);
        smp_memory_destroy(memory);
        smp_layout_destroy(layout);
        smp_flow_destroy(flow);
        smp_program_free(&program);
    }
    assert_int_equal(stash[0], 2 * stash[1]);
    assert_int_equal(stash[0], stash[2]);
    assert_int_equal(stash[0], stash[3]);
    assert_int_equal(weights[0], weights[2]);
    smp_graph_destroy(graph);
}

/* What a rank with the whole model keeps for ever, but for work areas and the loss. */
static int64_t kept_bytes(const smp_graph *graph, smp_memory_rank **out)
{
    int32_t stage[4] = {0};
    smp_program program = {0};
    smp_flow *flow;
    smp_layout *layout;
    assert_int_equal(SMP_OK, smp_flow_build(graph, stage, 1, 2, &flow));
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
                                out));
    smp_layout_destroy(layout);
    smp_flow_destroy(flow);
    smp_program_free(&program);
    return (*out)->work - 64;
}

/* a is frozen whole; of b, which trains its bias, a gradient is made anyway. */
static void test_memory_target_frozen(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: frozen\n"
        "inputs: {x: {dtype: float32, shape: [64]}, y: {dtype: float32, shape: [64]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: x, out: h, features: 64}\n"
        "  - {op: linear, name: b, in: h, out: h, features: 64}\n"
        "  - {op: linear, name: a2, in: h, out: h, features: 64, bias: false, weight: a.weight}\n"
        "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    const bool frozen[] = {true, true, true, false}; /* a.weight, a.bias, b.weight, b.bias */
    const int64_t matrix = 64 * 64;
    smp_graph *graph = NULL;
    smp_memory_rank *memory;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    const int64_t before = kept_bytes(graph, &memory);
    assert_int_equal(5, memory->n_use);
    smp_memory_destroy(memory);
    assert_int_equal(SMP_OK, smp_graph_freeze(graph, frozen));
    const int64_t after = kept_bytes(graph, &memory);
    /* Two states of each; of the bias an accumulator, of the tied matrix two and their sum. */
    assert_int_equal(before - after, 12 * 64 + (8 + 8 + 4) * matrix);
    assert_int_equal(2, memory->n_use);
    assert_int_equal(3, memory->n_region);
    for (int32_t i = 0; i < memory->n_region; i++) {
        const smp_memory_region *region = &memory->region[i];
        assert_true(region->weight >= 0);
        assert_int_equal(region->idle, i > 0);
        assert_int_equal(region->grad >= 0, !region->idle);
        assert_int_equal(region->state[1] >= 0, !region->idle);
    }
    assert_int_equal(memory->bucket[0].elements, matrix + 64);
    smp_memory_destroy(memory);
    smp_graph_destroy(graph);
}

enum { MATRIX = 64 * 64 };

/* The last one of a group of `shard` whose states are offloaded. */
static smp_memory_rank *far_memory(const smp_graph *graph, int shard, smp_shard_what what)
{
    int32_t stage[6] = {0};
    smp_program program = {0};
    smp_flow *flow;
    smp_layout *layout;
    smp_memory_rank *memory;
    static const smp_action_kind kinds[] = {SMP_ACTION_GATHER,  SMP_ACTION_F,   SMP_ACTION_B,
                                            SMP_ACTION_REDUCE,  SMP_ACTION_ALL, SMP_ACTION_DROP,
                                            SMP_ACTION_OPTIMIZE};
    assert_int_equal(SMP_OK, smp_flow_build(graph, stage, 1, 2, &flow));
    assert_int_equal(SMP_OK, smp_layout_build(graph, flow, 0, false, NULL, NULL, &layout));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (shard > 1 || kinds[i] == SMP_ACTION_F || kinds[i] == SMP_ACTION_B)
            assert_int_equal(SMP_OK, smp_program_push(&program, kinds[i], 0, 0));
    const smp_sharding sharding = {.shard = shard, .what = what, .offload_states = true};
    const smp_status status =
        smp_memory_plan(&(smp_memory_input){.graph = graph,
                                            .flow = flow,
                                            .program = &program,
                                            .stage_of_chunk = (int[]){0},
                                            .stage_rank = (int[]){0},
                                            .layout = (const smp_layout *const[]){layout},
                                            .chunks = 1,
                                            .microbatches = 1,
                                            .ddp = shard,
                                            .blocks = shard,
                                            .sharding = sharding,
                                            .optimizer_states = 2},
                        &memory);
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_layout_destroy(layout);
    smp_flow_destroy(flow);
    smp_program_free(&program);
    return memory;
}

/* In 16 bits a GPU reads a and b, which stand first, as rounded alone, but norm and its bias in
 * fp32; the tied matrix too, in one of its two uses. Where states are offloaded the former's fp32
 * values lie beside them, in host memory; unless weights are sharded. */
static void test_memory_target_far(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: far\n"
        "inputs: {x: {dtype: int32, shape: [8]}, y: {dtype: float32, shape: [8, 64]}}\n"
        "ops:\n"
        "  - {op: embedding, name: table, in: x, out: h, rows: 64, features: 64}\n"
        "  - {op: layernorm, name: norm, in: h, out: h}\n"
        "  - {op: linear, name: a, in: h, out: h, features: 64}\n"
        "  - {op: linear, name: b, in: h, out: h, features: 64, bias: false}\n"
        "  - {op: linear, name: head, in: h, out: h, features: 64, bias: false, weight: "
        "table.weight}\n"
        "  - {op: mse, name: loss, in: [h, y], out: loss}\nloss: loss\n";
    static const smp_target targets[] = {{SMP_BACKEND_CUDA, SMP_PRECISION_BF16},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_FP16},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_TF32},
                                         {SMP_BACKEND_CPU, SMP_PRECISION_BF16}};
    const int64_t far = 2 * MATRIX + 64, near = MATRIX + 2 * 64;
    smp_graph *graph = NULL;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    for (int t = 0; t < 4; t++) {
        assert_int_equal(SMP_OK, smp_graph_set_target(graph, targets[t]));
        const bool has = t < 2;
        const smp_sharding offload = {.offload_states = true};
        assert_int_equal(has, smp_memory_host_weights(graph, offload));
        assert_false(smp_memory_host_weights(graph, (smp_sharding){0}));
        assert_true(smp_memory_host_bytes(graph, offload) ==
                    smp_memory_state_bytes(graph, offload) - (has ? 4 : 0));
        smp_memory_rank *memory = far_memory(graph, 1, SMP_SHARD_OPTIMIZER);
        assert_int_equal(memory->host_bytes, 8 * (far + near) + (has ? 4 * far : 0));
        assert_int_equal(memory->n_region, has ? 3 : 2);
        for (int32_t i = 0; i < memory->n_region; i++)
            assert_int_equal(memory->region[i].in_host, has && i == 0);
        for (int32_t k = 0; k < memory->n_param && has; k++) {
            const char first = graph->param[memory->param[k].param].name[0];
            assert_int_equal(memory->region[memory->param[k].region].in_host,
                             first == 'a' || first == 'b');
        }
        smp_memory_destroy(memory);
    }
    assert_int_equal(SMP_OK, smp_graph_set_target(graph, targets[0]));
    for (int what = SMP_SHARD_OPTIMIZER; what <= SMP_SHARD_WEIGHTS; what++) {
        smp_memory_rank *memory = far_memory(graph, 2, (smp_shard_what)what);
        assert_int_equal(memory->region[0].in_host, what != SMP_SHARD_WEIGHTS);
        /* A piece is longer than any of these: one rank has all of a region, or nothing. */
        assert_true(memory->host_bytes <=
                    8 * (far + near) + (memory->region[0].in_host ? 4 * far : 0));
        smp_memory_destroy(memory);
    }
    smp_graph_destroy(graph);
}

/* MiB, without the pieces of sums. */
static int64_t communicators(smp_communicators of)
{
    const int64_t pieces = (int64_t)SMP_SUM_PIECE_BYTES * ((of.replicas > 1) + (of.tensor > 1));
    return (smp_communicator_bytes(&of) - pieces) >> 20;
}

/* A communicator for each group of ranks that differs from the others. */
static void test_memory_target_communicators(void **state)
{
    (void)state;
    const int64_t lane = 8 + SMP_LANE_CHANNELS * (8 + 10);
    const int64_t of_2 = 8 + SMP_SUM_CHANNELS * (8 + 12), of_4 = 8 + SMP_SUM_CHANNELS * (8 + 36),
                  of_8 = 8 + SMP_SUM_CHANNELS * (8 + 84);
    const struct {
        smp_communicators of;
        int64_t mib;
    } cases[] = {
        {{0, 1, 1, 1, 1, 1, 8}, 0},
        {{3, 1, 1, 1, 1, 1, 8}, 3 * lane},
        {{0, 1, 1, 1, 1, 4, 8}, of_4},
        {{0, 8, 1, 1, 1, 1, 8}, of_8},
        {{0, 8, 8, 1, 1, 1, 8}, of_8}, /* the shard group is all replicas */
        {{0, 8, 4, 1, 1, 1, 8}, of_8 + of_4 + of_2},
        {{0, 8, 1, 4, 2, 1, 8}, of_4 + of_2}, /* all sums go in two hops */
        {{0, 8, 4, 4, 2, 1, 8}, of_4 + of_2}, /* hops are the shard groups */
        {{0, 8, 4, 2, 2, 1, 8}, of_8 + of_2 + of_2 + of_2},
        {{0, 8, 8, 8, 1, 1, 8}, of_8},
        /* Four of the replicas on this machine, others elsewhere, by way of seven devices, too. */
        {{0, 8, 1, 1, 1, 2, 8}, 8 + SMP_SUM_CHANNELS * (8 + 36 + 4 + 14) + of_2},
        {{0, 8, 8, 2, 4, 2, 8}, of_2 + of_4 + of_2},
        {{0, 8, 1, 1, 1, 8, 8}, 8 + SMP_SUM_CHANNELS * (8 + 4 + 14) + of_8},
        {{0, 4000, 1, 1, 1, 1, 3}, 8 + SMP_SUM_CHANNELS * (8 + 24 + 4 + 4)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(cases[i].mib, communicators(cases[i].of));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_target_weights),
        cmocka_unit_test(test_memory_target_frozen),
        cmocka_unit_test(test_memory_target_far),
        cmocka_unit_test(test_memory_target_communicators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
