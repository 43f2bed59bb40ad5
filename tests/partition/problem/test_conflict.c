/* Conflicts: the set that is named contradicts itself, needs each of its members, and no smaller one
 * does, against a search through all sets and all assignments; and what the message says. */
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

static void check_chain(const fixture *f, const smp__conflict *c)
{
    const smp_graph *graph = f->graph;
    const smp_problem *p = &f->problem;
    assert_true(smp_problem_pin(p, c->step[0].op) > smp_problem_pin(p, c->step[c->n_step - 1].op));
    for (int32_t i = 0; i + 1 < c->n_step; i++) {
        const smp_op *a = &graph->op[c->step[i].op], *b = &graph->op[c->step[i + 1].op];
        if (c->step[i].via >= 0) {
            smp__constraint e = c->joiner[c->step[i].via];
            if (e.kind == SMP__CONSTRAINT_GROUP)
                assert_true(a->group == e.index && b->group == e.index);
            continue;
        }
        bool reads = false;
        for (int32_t k = 0; k < b->n_in; k++)
            reads |= b->in[k] == a->out;
        assert_true(reads);
    }
}

/* The parts that the crowded stages have are one too few, and lie there in no assignment of more. */
static void check_crowd(const smp__conflict *c)
{
    assert_true(c->crowded);
    assert_int_equal(c->n_part, c->n_starved - 1);
    for (int32_t i = 1; i < c->n_starved; i++)
        assert_true(c->starved[i - 1] < c->starved[i]);
}

static void check_conflict(const fixture *f, int seed, int *chains, int *crowds)
{
    constraint_set set = all_constraints(f);
    smp__conflict conflict;
    smp_arena *arena = smp_arena_create();
    unsigned all = (1u << set.n) - 1;
    bool feasible;
    assert_int_equal(SMP_OK, smp__conflict_feasible(&f->problem, &feasible));
    if (feasible == contradicts(f, &set, all))
        fail_msg("seed %d: feasible %d", seed, feasible);
    assert_int_equal(SMP_OK, smp__conflict_find(&f->problem, arena, &conflict));
    if (!feasible) {
        unsigned mask = mask_of(&set, &conflict);
        if (!contradicts(f, &set, mask))
            fail_msg("seed %d: the set named allows a pipeline", seed);
        for (int e = 0; e < set.n; e++) {
            if ((mask >> e & 1) && contradicts(f, &set, mask & ~(1u << e)))
                fail_msg("seed %d: element %d is not needed", seed, e);
        }
        assert_true(conflict.smallest);
        for (unsigned other = 0; other <= all; other++) {
            if (__builtin_popcount(other) < conflict.n && contradicts(f, &set, other))
                fail_msg("seed %d: %d elements named, %d are enough", seed, conflict.n,
                         __builtin_popcount(other));
        }
        if (conflict.n_step > 0)
            check_chain(f, &conflict);
        else
            check_crowd(&conflict);
        *chains += conflict.n_step > 0;
        *crowds += conflict.crowded;
        assert_int_equal(SMP_ERR_NO_FIT, smp__conflict_fail(&f->problem));
    }
    smp_arena_destroy(arena);
}

static void test_conflict_is_smallest(void **state)
{
    (void)state;
    int chains = 0, crowds = 0;
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
        check_conflict(&f, seed, &chains, &crowds);
        fixture_close(&f);
        free(model);
    }
    if (chains < 100 || crowds < 200)
        fail_msg("only %d chains and %d crowds", chains, crowds);
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
    expect_message(HEAD OP("a", ", stage: 1") OP("b", ", in: ta") OP("c", ", in: tb, stage: 0")
                       OP("d", "") OP("e", ", in: tc"),
                   2,
                   (const char *[]){"op 'a' (stage: 1, model.yaml:4:5) -> op 'b' -> op 'c' "
                                    "(stage: 0, model.yaml:6:5)",
                                    "lifting either", NULL});
    expect_message(HEAD OP("a", ", stage: 1") OP("b", ", in: ta, group: g") OP("c", ", group: g")
                       OP("d", ", in: tc, stage: 0") OP("e", "") OP("f", ", in: td"),
                   2,
                   (const char *[]){"op 'a' (stage: 1, model.yaml:4:5) -> op 'b' = by group 'g' "
                                    "(model.yaml:5:5 to model.yaml:6:5) = op 'c' -> op 'd' "
                                    "(stage: 0, model.yaml:7:5)",
                                    "any one of them", NULL});
    expect_message(
        HEAD OP("a", ", stage: 1, group: g") OP("b", ", stage: 0, group: g") OP("c", "")
            OP("d", ""),
        2, (const char *[]){"op 'a' (stage: 1", "= by group 'g'", "= op 'b' (stage: 0", NULL});
    expect_message(HEAD OP("a", ", stage: 0") OP("b", ", in: ta, stage: 0") OP("c", ", stage: 2"),
                   3,
                   (const char *[]){"one of the stages 1 and 2 of 3 would be empty",
                                    "only 1 part is left for them ('c')",
                                    "because of op 'b' (stage: 0, model.yaml:5:5)", NULL});
    expect_message(HEAD OP("a", ", stage: 0") OP("b", ", stage: 0") OP("c", ", stage: 2"), 3,
                   (const char *[]){"op 'a' (stage: 0, model.yaml:4:5) and op 'b' (stage: 0, "
                                    "model.yaml:5:5)",
                                    "lifting either would do", NULL});
    expect_message(HEAD OP("a", ", stage: 2") OP("b", ", in: ta") OP("c", ", in: tb"), 3,
                   (const char *[]){"stage 0 of 3 would be empty",
                                    "because of op 'a' (stage: 2, model.yaml:4:5)",
                                    "lifting it would do", NULL});
    expect_message(HEAD OP("a", ", stage: 1") OP("b", ", in: ta, stage: 0"), 2,
                   (const char *[]){"stage 0 of 2 would be empty", "lifting it would do",
                                    "Besides, against the flow: op 'a' (stage: 1, "
                                    "model.yaml:4:5) -> op 'b' (stage: 0",
                                    NULL});
    expect_message(HEAD OP("a", ", group: g") OP("b", ", in: ta, group: g") OP("c", ""), 3,
                   (const char *[]){"only 2 parts are left", "group 'g'", NULL});
    expect_message(HEAD OP("a", ""), 2, (const char *[]){"2 stages need as many ops", NULL});
}

/* Nested pins and groups on a long chain are named with a few of the ops between them. */
static void test_conflict_long_chain(void **state)
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
        if (i == 10 || i == N - 10)
            smp_text_append(&text, ", stage: %d", i == 10 ? 5 : 2);
        smp_text_append(&text, ", cost: {forward_us: 1, output_bytes: 4}}\n");
    }
    fixture_cluster(&f, 8, 8, 1e9);
    fixture_open(&f, text.data, 8, 1);
    assert_int_equal(SMP_ERR_NO_FIT, smp__conflict_fail(&f.problem));
    assert_non_null(strstr(smp_last_error(), "op 'n10' (stage: 5"));
    assert_non_null(strstr(smp_last_error(), "op 'n19990' (stage: 2"));
    assert_non_null(strstr(smp_last_error(), "19976 more"));
    fixture_close(&f);
    smp_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conflict_is_smallest),
        cmocka_unit_test(test_conflict_message),
        cmocka_unit_test(test_conflict_long_chain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
