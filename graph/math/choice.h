/* Choices among ways to compute the same, which are right but differ in their bits, and of which a
 * library may fail to do one: every rank of a job takes the same way, or bits would depend on the
 * split. What `prepare` finds is tried in the first run of the kernels, where a rank refuses what
 * fails and goes on with the next way; then all ranks agree (exec/job/agree_choices.c). Where that
 * gives a rank a way that it has not run, all run the kernels again, until each has run what it
 * takes: a call tries the way that stands first then, and may find that tried before. All that is
 * before the first step, and nothing is chosen later. The order of the ways is their order of
 * preference. */
#ifndef SMP_GRAPH_MATH_CHOICE_H
#define SMP_GRAPH_MATH_CHOICE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/status.h"

enum {
    SMP__CHOICE_ABOUT = 160,
    SMP__CHOICE_WHY = 192,
    SMP__CHOICE_WAYS = 32,
    SMP__CHOICE_NAMES = 2,
    SMP__CHOICE_NAME = 32
};

/* One on a rank for all operators that compute the same: what is costly to make is made once. */
typedef struct smp__choice {
    char about[SMP__CHOICE_ABOUT]; /* what is computed, of which sizes and types: equal texts on two
                                      ranks are one choice */
    int ways;
    /* What checkpoints call the first ways; empty: they do not say which was taken. */
    char name[SMP__CHOICE_NAMES][SMP__CHOICE_NAME];
    uint32_t refused;          /* bit i: way i; once agreed, of any rank */
    char why[SMP__CHOICE_WHY]; /* of the first refusal here; empty: none */
    const float *differs;      /* memory that the host can read, written by the device in a run:
                                  how far way 0 is from the last one, in units of what is
                                  allowed; NULL: not compared */
    void *made;                /* what was made for it, owned: */
    void (*release)(void *made);
} smp__choice;

typedef struct smp__choices {
    smp__choice **choice; /* [n], by the order in which operators asked */
    int n;
    bool trying; /* a run before the first step: calls try ways and refuse */
} smp__choices;

/* The way that is taken: the first that is not refused; `ways` if there is none. */
static inline int smp__choice_way(const smp__choice *choice)
{
    int way = 0;
    while (way < choice->ways && (choice->refused >> way & 1))
        way++;
    return way;
}

/* Only while `trying`, or in `prepare`. The format says why. */
__attribute__((format(printf, 3, 4))) static inline void
smp__choice_refuse(smp__choice *choice, int way, const char *format, ...)
{
    va_list arguments;
    choice->refused |= UINT32_C(1) << way;
    if (choice->why[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(choice->why, sizeof choice->why, format, arguments);
    va_end(arguments);
}

/* *out: the choice of that text, which is the list's; *is_new: it was not there, and has no way
 * yet. */
static inline smp_status smp__choice_find(smp__choices *list, const char *about, smp__choice **out,
                                          bool *is_new)
{
    *is_new = false;
    for (int i = 0; i < list->n; i++)
        if (strncmp(list->choice[i]->about, about, SMP__CHOICE_ABOUT - 1) == 0) {
            *out = list->choice[i];
            return SMP_OK;
        }
    smp__choice **more =
        (smp__choice **)realloc(list->choice, ((size_t)list->n + 1) * sizeof *more);
    if (more)
        list->choice = more;
    smp__choice *made = more ? (smp__choice *)calloc(1, sizeof *made) : NULL;
    if (!made)
        return smp_fail_memory(sizeof *made);
    snprintf(made->about, sizeof made->about, "%s", about);
    list->choice[list->n++] = made;
    *out = made;
    *is_new = true;
    return SMP_OK;
}

/* After a run, with the device idle: refuses what differs too much. Does that change a way? */
static inline bool smp__choices_judge(smp__choices *list)
{
    bool changed = false;
    for (int i = 0; i < list->n; i++) {
        smp__choice *choice = list->choice[i];
        const int way = smp__choice_way(choice);
        if (choice->differs && !(*choice->differs <= 1))
            smp__choice_refuse(choice, 0, "its results are %.3g times what is allowed from ours",
                               (double)*choice->differs);
        choice->differs = NULL;
        changed |= smp__choice_way(choice) != way;
    }
    return changed;
}

static inline void smp__choices_free(smp__choices *list)
{
    for (int i = 0; i < list->n; i++) {
        if (list->choice[i]->release)
            list->choice[i]->release(list->choice[i]->made);
        free(list->choice[i]);
    }
    free(list->choice);
    list->choice = NULL;
    list->n = 0;
}

#endif
