/* Conflicts: the set that is named contradicts itself and needs each of its members, against a
 * search through all assignments; and what the message says. */
#include "partition/problem/conflict.h"

#include "tests/partition/problem_fixture.h"

enum { MAX_ELEMENTS = 16 };

typedef struct constraint_set {
    smp__constraint element[MAX_ELEMENTS];
    int n;
} constraint_set;

/* Pins, and groups of at least two members. */
static constraint_set all_constraints(const fixture *f)
{
    constraint_set set = {.n = 0};
    const smp_graph *graph = f->graph;
    for (int32_t i = 0; i < graph->n_op; i++) {
        if (smp_problem_pin(&f->problem, i) >= 0)
            set.element[set.n++] = (smp__constraint){SMP__CONSTRAINT_PIN, i};
    }
    for (int32_t g = 0; g < graph->n_group; g++) {
        int members = 0;
        for (int32_t i = 0; i < graph->n_op; i++)
            members += graph->op[i].group == g;
        if (members > 1)
            set.element[set.n++] = (smp__constraint){SMP__CONSTRAINT_GROUP, g};
    }
    for (int32_t l = 0; f->problem.together && l < graph->n_op; l++) {
        int members = 0;
        for (int32_t i = 0; i < graph->n_op; i++)
            members += f->problem.together[i] == l;
        if (members > 1)
            set.element[set.n++] = (smp__constraint){SMP__CONSTRAINT_TOGETHER, l};
    }
    assert_true(set.n <= MAX_ELEMENTS);
    return set;
}

static bool keeps(const fixture *f, const constraint_set *set, unsigned mask, const int32_t *stage,
                  int n)
{
    for (int e = 0; e < set->n; e++) {
        smp__constraint c = set->element[e];
        if (!(mask >> e & 1))
            continue;
        if (c.kind == SMP__CONSTRAINT_PIN) {
            if (c.index < n && stage[c.index] != smp_problem_pin(&f->problem, c.index))
                return false;
            continue;
        }
        int32_t seen = -1;
        for (int32_t i = 0; i < n; i++) {
            int32_t label =
                c.kind == SMP__CONSTRAINT_GROUP ? f->graph->op[i].group : f->problem.together[i];
            if (label != c.index)
                continue;
            if (seen >= 0 && stage[i] != stage[seen])
                return false;
            seen = i;
        }
    }
    return true;
}

/* Does an assignment of ops n.. that keeps the set and the flow and fills all stages exist? */
static bool exists(const fixture *f, const constraint_set *set, unsigned mask, int32_t *stage,
                   int n)
{
    const smp_graph *graph = f->graph;
    if (n == graph->n_op) {
        unsigned used = 0;
        for (int i = 0; i < n; i++)
            used |= 1u << stage[i];
        return used == (1u << f->problem.n_stage) - 1;
    }
    int32_t least = 0;
    for (int32_t k = 0; k < graph->op[n].n_in; k++) {
        int32_t from = graph->tensor[graph->op[n].in[k]].producer;
        least = from >= 0 && stage[from] > least ? stage[from] : least;
    }
    for (stage[n] = least; stage[n] < f->problem.n_stage; stage[n]++) {
        if (keeps(f, set, mask, stage, n + 1) && exists(f, set, mask, stage, n + 1))
            return true;
    }
    return false;
}

static bool contradicts(const fixture *f, const constraint_set *set, unsigned mask)
{
    int32_t stage[32];
    return !exists(f, set, mask, stage, 0);
}

static unsigned mask_of(const constraint_set *set, const smp__conflict *conflict)
{
    unsigned mask = 0;
    for (int32_t i = 0; i < conflict->n; i++) {
        for (int e = 0; e < set->n; e++) {
            if (set->element[e].kind == conflict->element[i].kind &&
                set->element[e].index == conflict->element[i].index)
                mask |= 1u << e;
        }
    }
    assert_int_equal(__builtin_popcount(mask), conflict->n);
    return mask;
}

static void check_conflict(const fixture *f, int seed, int *count)
{
    constraint_set set = all_constraints(f);
    smp__obstacle obstacle;
    smp__units *units;
    unsigned all = (1u << set.n) - 1;
    assert_int_equal(SMP_OK, smp__units_try(&f->problem, &units, &obstacle));
    smp__units_destroy(units);
    if ((obstacle.kind != SMP__OBSTACLE_NONE) != contradicts(f, &set, all))
        fail_msg("seed %d: obstacle %d", seed, obstacle.kind);
    if (obstacle.kind == SMP__OBSTACLE_NONE)
        return;
    smp__conflict conflict;
    smp_arena *arena = smp_arena_create();
    assert_int_equal(SMP_OK, smp__conflict_find(&f->problem, arena, &conflict));
    unsigned mask = mask_of(&set, &conflict);
    if (!conflict.minimal || !contradicts(f, &set, mask))
        fail_msg("seed %d: the set named allows a pipeline", seed);
    for (int e = 0; e < set.n; e++) {
        if ((mask >> e & 1) && contradicts(f, &set, mask & ~(1u << e)))
            fail_msg("seed %d: element %d is not needed", seed, e);
    }
    count[conflict.obstacle.kind]++;
    assert_int_equal(SMP_ERR_NO_FIT, smp__conflict_fail(&f->problem));
    smp_arena_destroy(arena);
}

static void test_conflict_is_minimal(void **state)
{
    (void)state;
    int count[SMP__OBSTACLE_EMPTY_STAGE + 1] = {0};
    for (int seed = 0; seed < 1500; seed++) {
        fixture_random random = {(uint64_t)seed};
        fixture f;
        int n_stage = 2 + fixture_below(&random, 3);
        int32_t label[32], pin[32];
        fixture_shape shape = {.n_op = 2 + fixture_below(&random, 6),
                               .stages = n_stage,
                               .groups = seed % 3,
                               .pin_percent = 20 + fixture_below(&random, 50),
                               .group_percent = 50,
                               .skip_percent = 30,
                               .source_percent = 30};
        char *model = fixture_model(&random, &shape);
        fixture_cluster(&f, n_stage, n_stage, 1e9);
        fixture_open(&f, model, n_stage, 1);
        for (int i = 0; i < f.graph->n_op; i++) {
            label[i] = fixture_below(&random, f.graph->n_op);
            pin[i] = fixture_chance(&random, 40) ? fixture_below(&random, n_stage) : -1;
        }
        if (seed % 5 == 0)
            f.problem.together = label;
        if (seed % 7 == 0)
            f.problem.pin = pin;
        check_conflict(&f, seed, count);
        fixture_close(&f);
        free(model);
    }
    for (int kind = SMP__OBSTACLE_FEW_UNITS; kind <= SMP__OBSTACLE_EMPTY_STAGE; kind++) {
        if (count[kind] < 50)
            fail_msg("only %d times obstacle %d", count[kind], kind);
    }
}

#define HEAD "smp: 1\nname: m\nops:\n"
#define OP(name, rest)                                                                             \
    "  - {op: opaque, name: " name ", out: t" name rest                                            \
    ", cost: {forward_us: 1, output_bytes: 4}}\n"

static void expect_message(const char *model, int n_stage, const char *const *parts)
{
    fixture f;
    fixture_cluster(&f, n_stage, n_stage, 1e9);
    fixture_open(&f, model, n_stage, 1);
    assert_int_equal(SMP_ERR_NO_FIT, smp__conflict_fail(&f.problem));
    for (int i = 0; parts[i]; i++) {
        if (!strstr(smp_last_error(), parts[i]))
            fail_msg("'%s' does not say '%s'", smp_last_error(), parts[i]);
    }
    fixture_close(&f);
}

static void test_conflict_message(void **state)
{
    (void)state;
    /* b and e keep both stages filled: what remains is the flow. */
    expect_message(HEAD OP("a", ", stage: 1") OP("b", ", in: ta") OP("c", ", in: tb, stage: 0")
                       OP("d", "") OP("e", ", in: tc"),
                   2,
                   (const char *[]){"earlier stage than what it reads",
                                    "op 'a' (stage: 1, model.yaml:4:5) and op 'c' (stage: 0, "
                                    "model.yaml:6:5); one of them has to go",
                                    NULL});
    expect_message(HEAD OP("a", ", stage: 1") OP("b", ", in: ta, group: g") OP("c", ", group: g")
                       OP("d", ", in: tc, stage: 0") OP("e", "") OP("f", ", in: td"),
                   2,
                   (const char *[]){"op 'a' (stage: 1, model.yaml:4:5), op 'd' (stage: 0, "
                                    "model.yaml:7:5) and group 'g' (model.yaml:5:5 to "
                                    "model.yaml:6:5); one of them has to go",
                                    NULL});
    expect_message(
        HEAD OP("a", ", stage: 0") OP("b", ", stage: 0") OP("c", ", stage: 2"), 3,
        (const char *[]){"one of the 3 stages would be empty, because of op 'a' (stage: 0, "
                         "model.yaml:4:5) and op 'b' (stage: 0, model.yaml:5:5)",
                         NULL});
    expect_message(
        HEAD OP("a", ", stage: 2") OP("b", ", in: ta") OP("c", ", in: tb"), 3,
        (const char *[]){"one of the 3 stages would be empty, because of op 'a' (stage: 2, "
                         "model.yaml:4:5); it has to go",
                         NULL});
    expect_message(
        HEAD OP("a", ", group: g") OP("b", ", in: ta, group: g") OP("c", ""), 3,
        (const char *[]){"3 stages need as many parts, the model has 2 parts that can be "
                         "separated, because of group 'g'",
                         NULL});
    expect_message(HEAD OP("a", ""), 2, (const char *[]){"2 stages need as many ops", NULL});
}

/* On a large model, a few of very many pins. */
static void test_conflict_among_many_pins(void **state)
{
    (void)state;
    enum { N = 20000 };
    fixture f;
    smp_text text = {0};
    smp_text_append(&text, HEAD);
    for (int i = 0; i < N; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&text, ", in: t%d", i - 1);
        if (i == 10 || i % 20 == 1)
            smp_text_append(&text, ", stage: %d", i == 10 ? 5 : i * 4 / N);
        smp_text_append(&text, ", cost: {forward_us: 1, output_bytes: 4}}\n");
    }
    fixture_cluster(&f, 8, 8, 1e9);
    fixture_open(&f, text.data, 8, 1);
    assert_int_equal(SMP_ERR_NO_FIT, smp__conflict_fail(&f.problem));
    assert_non_null(strstr(smp_last_error(), "op 'n10' (stage: 5"));
    assert_non_null(strstr(smp_last_error(), "one of them has to go"));
    fixture_close(&f);
    smp_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conflict_is_minimal),
        cmocka_unit_test(test_conflict_message),
        cmocka_unit_test(test_conflict_among_many_pins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
