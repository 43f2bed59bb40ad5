/* The plan reader, the sketch reader, and all that is done with a plan before it runs: bound to its
 * model, verified, simulated. A plan that is taken is written as a file that is read as the same
 * again; a plan that verifies can be simulated, in finite time. */
#include "tests/fuzz/fuzz.h"

#include "schedule/check/check.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/simulate/simulate.h"
#include "schedule/verify/verify.h"

/* The model as the plan splits it, for device 0; NULL: that was refused. `from` may have
 * patterns. */
static smp_graph *split_model(const smp_splitting *from, bool patterns)
{
    smp_arena *arena = smp_arena_create();
    smp_splitting exact = *from;
    smp_graph *graph = NULL;
    FUZZ_REQUIRE(arena && smp_graph_read(FUZZ_MODEL, &graph) == SMP_OK);
    if ((patterns && !fuzz_taken(smp_splitting_resolve(from, graph, arena, &exact))) ||
        !fuzz_taken(smp_splitting_apply(&exact, 0, &graph))) {
        smp_graph_destroy(graph);
        graph = NULL;
    }
    smp_arena_destroy(arena);
    return graph;
}

static void check_stages(const smp_graph *graph, const smp_sketch *sketch)
{
    int32_t *stage = calloc((size_t)graph->n_op, sizeof *stage);
    smp_findings findings = {.arena = smp_arena_create()};
    FUZZ_REQUIRE(stage && findings.arena);
    fuzz_taken(smp__check_stages(graph, sketch, sketch->n_stage, stage, &findings));
    free(findings.item);
    smp_arena_destroy(findings.arena);
    free(stage);
}

static void read_sketch(const char *text, size_t size)
{
    const smp_graph *graph = fuzz_model();
    smp_sketch *sketch = NULL;
    int pipeline = 0, chunks = 0;
    int32_t *pin = NULL;
    if (!fuzz_taken(smp_sketch_parse("plan.yaml", text, size, &sketch)))
        return;
    smp_sketch_shape(sketch, &pipeline, &chunks);
    smp_where *where = NULL;
    if (fuzz_taken(smp_sketch_pins(sketch, graph, NULL, &pin, &where))) {
        free(pin);
        free(where);
    }
    check_stages(graph, sketch);
    smp_graph *split = sketch->splitting.devices > 1 ? split_model(&sketch->splitting, true) : NULL;
    if (split)
        check_stages(split, sketch);
    smp_graph_destroy(split);
    smp_sketch_destroy(sketch);
}

static void write_and_read(const smp_plan *plan)
{
    smp_text first = {0}, again = {0}, json = {0};
    smp_plan *back = NULL;
    FUZZ_REQUIRE(smp_plan_format(plan, &first) == SMP_OK);
    FUZZ_REQUIRE(smp_plan_parse("again.yaml", first.data, first.length, &back) == SMP_OK);
    FUZZ_REQUIRE(smp_plan_format(back, &again) == SMP_OK);
    FUZZ_REQUIRE(strcmp(first.data, again.data) == 0);
    FUZZ_REQUIRE(smp_plan_format_json(plan, &json) == SMP_OK);
    smp_plan_destroy(back);
    smp_text_free(&first);
    smp_text_free(&again);
    smp_text_free(&json);
}

static void run(const smp_plan *plan, const smp_graph *graph)
{
    smp_simulated_plan simulated = {0};
    if (!fuzz_taken(smp_verify(plan, graph)))
        return;
    if (!fuzz_taken(smp_simulated_plan_open(plan, graph, &simulated)))
        return;
    FUZZ_REQUIRE(isfinite(simulated.simulation->step_us));
    smp_simulated_plan_close(&simulated);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_plan *plan = NULL;
    read_sketch((const char *)data, size);
    if (fuzz_taken(smp_plan_parse("plan.yaml", (const char *)data, size, &plan))) {
        write_and_read(plan);
        smp_graph *split =
            plan->splitting.devices > 1 ? split_model(&plan->splitting, false) : NULL;
        run(plan, split ? split : fuzz_model());
        smp_graph_destroy(split);
    }
    smp_plan_destroy(plan);
    return 0;
}
