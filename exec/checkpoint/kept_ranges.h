/* What one machine has of a state that is kept in memory: a place of its folder (kept_folder.h),
 * and which bytes of the whole file lie there. All machines together may have all of it, some bytes
 * twice. */
#ifndef SMP_EXEC_CHECKPOINT_KEPT_RANGES_H
#define SMP_EXEC_CHECKPOINT_KEPT_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/checkpoint/byte_spans.h"
#include "graph/base/text.h"

enum { SMP__KEPT_PLACES = 3 }; /* of a folder */

typedef struct smp__kept_state {
    uint64_t id;      /* drawn where a job begins to keep states, or goes back: alike on all of its
                         machines. 0: of a job on one machine, before there were ids */
    int64_t branch;   /* rises with each of these that the machines present know of */
    int64_t step;     /* -1: none, or it is being written */
    int64_t number;   /* of the save that it follows; INT64_MAX: cannot be read */
    int64_t begun;    /* the step of that save, of which it was not known whether it becomes
                         complete; 0: it was */
    int64_t bytes;    /* of the whole file */
    bool named;       /* so all machines that took part have all of their bytes */
    int place;        /* in the folder */
    int machine;      /* where several are looked at: which one */
    smp__spans spans; /* a set: what lies there */
} smp__kept_state;

void smp__kept_state_free(smp__kept_state *state);
void smp__kept_states_free(smp__kept_state *states, int n);

/* The file `ranges-PLACE` beside a place, given by descriptors: from this machine's bytes of the
 * state of `step`; of -1, nothing. It is no state's while spans are written. Takes no more memory
 * than smp__kept_index_reserve has. `path`: for messages. SMP_ERR_FAILED. */
smp_status smp__kept_index_write(int file, const smp__kept_state *state, bool spans_differ,
                                 const char *path);
/* Room for so many spans, beside what stands there. */
smp_status smp__kept_index_reserve(int file, int32_t spans, const char *path);
/* false: it is none, or damaged. Sets all but `named`, `place` and `machine`; free it. */
bool smp__kept_index_read(int file, smp__kept_state *out);

/* A line without its end, and back; `machine` does not travel. false: it is none, or there is no
 * memory. */
void smp__kept_state_print(const smp__kept_state *state, smp_text *line);
bool smp__kept_state_parse(const char *line, smp__kept_state *out);

/* Lines of several machines, "MACHINE STATE" and an end each: *states is malloc'ed, [*n]. The text
 * is spoilt. SMP_ERR_FAILED: a line is none, or names none of so many machines. */
smp_status smp__kept_states_parse(char *text, int machines, smp__kept_state **states, int *n);

/* A later branch is better, then what follows a later save (one that is begun counts from its
 * beginning, and a machine that was away then may come back with the number of one that was never
 * complete), then a later step; a header that cannot be read is first, as it is to be reported. */
bool smp__kept_is_better(const smp__kept_state *a, const smp__kept_state *b);
/* Of what several machines have, the first of each state that can be gone on from, best first: it
 * has a name on one of them, and together they have all of its bytes. chosen: [n]. */
smp_status smp__kept_choose(const smp__kept_state *states, int n, int *chosen, int *n_chosen);
/* Is a state later than the save of that number and step? A save that was only begun may have left
 * its number to another one, which was made without what is in this state. */
bool smp__kept_is_after(const smp__kept_state *state, int64_t number, int64_t step);
/* Are they of one state? */
bool smp__kept_same(const smp__kept_state *a, const smp__kept_state *b);

#endif
