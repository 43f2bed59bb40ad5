/* The default search against every named rule, under the same limits, with and without bounds on
 * live micro-batches: leaving everything open is never worse. Within 1 % the search takes the plan
 * with fewer micro-batches, so that much is allowed. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "schedule/planner/planner.h"

#define AS_GOOD (1.01 + 1e-9)

typedef struct setting {
    fixture f; /* graph, cluster and devices */
    smp_search_request request;
} setting;

static void open_setting(setting *s, fixture_random *random)
{
    int p = 2 + fixture_below(random, 2);
    fixture_shape shape = {.n_op = p + 2 + fixture_below(random, 3),
                           .skip_percent = fixture_below(random, 40),
                           .training = true};
    char *model = fixture_model(random, &shape);
    *s = (setting){0};
    if (smp_graph_parse("model.yaml", model, strlen(model), &s->f.graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), model);
    free(model);
    for (int32_t i = 0; i < s->f.graph->n_op; i++) /* few weights, so that stashes count */
        ((smp_op_cost_override *)s->f.graph->op[i].cost)->weight_bytes /= 8;
    fixture_cluster(&s->f, p, p, 1e7);
    s->f.cluster.overlap = fixture_chance(random, 70);
    s->request = (smp_search_request){
        .graph = s->f.graph,
        .cluster = &s->f.cluster,
        .options.devices = p,
        .options.stages = fixture_chance(random, 70) ? p : 0,
        .options.microbatches = p * (1 + fixture_below(random, 4)),
        .options.microbatch_size = 1,
        .options.recompute = fixture_chance(random, 50) ? SMP_RECOMPUTE_AUTO : SMP_RECOMPUTE_NONE,
        .options.seed = 1,
        .placement = SMP_PLACEMENT_AUTO};
}

/* Per sample; INFINITY: nothing fits, or the rule cannot run it. */
static double time_of(const smp_search_request *request, int64_t *peak_bytes)
{
    smp_planner_result result;
    smp_status status = smp_plan_make(request, "model.yaml", &result);
    if (status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT)
        return INFINITY;
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_plan *plan = result.plan;
    double time = plan->predicted.step_us / plan->ddp / plan->microbatches;
    *peak_bytes = result.search.best->peak_bytes;
    smp_planner_result_destroy(&result);
    return time;
}

/* The best of all rules, each with every bound. */
static double best_rule(const smp_search_request *request, const char **name, int *active)
{
    double best = INFINITY;
    int64_t ignored;
    for (int k = 0; smp_schedules()[k]; k++)
        for (int bound = 0; bound <= request->options.devices; bound++) {
            smp_search_request r = *request;
            r.options.schedule = smp_schedules()[k]->name;
            r.options.active_microbatches = bound;
            double time = time_of(&r, &ignored);
            if (time < best) {
                best = time;
                *name = r.options.schedule;
                *active = bound;
            }
        }
    return best;
}

static void test_default_search_is_never_worse(void **state)
{
    (void)state;
    int n = few_or_many(10, 40), worse = 0, limited = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {(uint64_t)seed << 32};
        setting s;
        int64_t peak_bytes;
        const char *name = "";
        int active = 0;
        open_setting(&s, &random);
        if (time_of(&s.request, &peak_bytes) < INFINITY)
            s.request.options.memory_bytes =
                (int64_t)((0.5 + 0.01 * fixture_below(&random, 60)) * (double)peak_bytes);
        double open = time_of(&s.request, &peak_bytes);
        double rule = best_rule(&s.request, &name, &active);
        limited += open == INFINITY;
        if (open > AS_GOOD * rule) {
            print_message("seed %d: %.6g us per sample; %s with a bound of %d: %.6g us\n", seed,
                          open, name, active, rule);
            worse++;
        }
        smp_graph_destroy(s.f.graph);
    }
    print_message("nothing fits in %d of %d cases\n", limited, n);
    assert_int_equal(0, worse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_search_is_never_worse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
