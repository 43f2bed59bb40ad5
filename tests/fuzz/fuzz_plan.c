/* The plan reader, the sketch reader, and all that is done with a plan before it runs: bound to its
 * model, verified, simulated. A plan that is taken is written as a file that is read as the same
 * again; a plan that verifies can be simulated, in finite time. */
#include "tests/fuzz/fuzz.h"

#include "schedule/check/check.h"
#include "schedule/simulate/simulate.h"
#include "schedule/verify/verify.h"

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
    int32_t *stage = calloc((size_t)graph->n_op, sizeof *stage);
    smp_findings findings = {.arena = smp_arena_create()};
    FUZZ_REQUIRE(stage && findings.arena);
    fuzz_taken(smp__check_stages(graph, sketch, sketch->n_stage, stage, &findings));
    free(findings.item);
    smp_arena_destroy(findings.arena);
    free(stage);
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

static void run(const smp_plan *plan)
{
    smp_simulated_plan simulated = {0};
    if (!fuzz_taken(smp_verify(plan, fuzz_model())))
        return;
    if (!fuzz_taken(smp_simulated_plan_open(plan, fuzz_model(), &simulated)))
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
        run(plan);
    }
    smp_plan_destroy(plan);
    return 0;
}
