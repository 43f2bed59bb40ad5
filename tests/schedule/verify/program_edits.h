/* Edits of one action of a program, each judged by the verifier and by a test's own rule. */
#ifndef SMP_TESTS_SCHEDULE_VERIFY_PROGRAM_EDITS_H
#define SMP_TESTS_SCHEDULE_VERIFY_PROGRAM_EDITS_H

#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"

/* Defined by the test: is the plan right? */
static bool expected_of(const made_plan *made);

typedef struct tally {
    long accepted, rejected;
} tally;

static inline void compare(const made_plan *made, int rank, const char *edit, tally *t)
{
    const bool expected = expected_of(made);
    const smp_status status = smp_verify_programs(&made->plan, made->flow);
    if (status != (expected ? SMP_OK : SMP_ERR_INPUT)) {
        smp_text text = {0};
        smp_program_format(&made->program[rank], &text);
        fail_msg("%s, %s on rank %d: status %d (%s), expected %s:\n%s", made->plan.schedule, edit,
                 rank, status, status ? smp_last_error() : "", expected ? "accepted" : "rejected",
                 text.data);
    }
    ++*(expected ? &t->accepted : &t->rejected);
}

static inline void insert(smp_program *p, int64_t at, smp_action action)
{
    assert_int_equal(smp_program_push(p, SMP_ACTION_F, 0, 0), SMP_OK);
    memmove(&p->action[at + 1], &p->action[at], (size_t)(p->n - 1 - at) * sizeof action);
    p->action[at] = action;
}

static inline void take_out(smp_program *p, int64_t at)
{
    memmove(&p->action[at], &p->action[at + 1], (size_t)(p->n - at - 1) * sizeof *p->action);
    p->n--;
}

/* Action i taken out, put in once more at every place, and exchanged with every later one. */
static inline void edit_in_place(made_plan *made, int rank, int64_t i, tally *t)
{
    smp_program *p = &made->program[rank];
    const smp_action saved = p->action[i];
    take_out(p, i);
    compare(made, rank, "removed", t);
    insert(p, i, saved);
    for (int64_t to = 0; to <= p->n; to++) {
        insert(p, to, saved);
        compare(made, rank, "duplicated", t);
        take_out(p, to);
    }
    for (int64_t k = i + 1; k < p->n; k++) {
        p->action[i] = p->action[k];
        p->action[k] = saved;
        compare(made, rank, "swapped", t);
        p->action[k] = p->action[i];
        p->action[i] = saved;
    }
}

#endif
