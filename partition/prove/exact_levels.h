/* The candidates for each border of a pipeline, and what rules them out without looking at pairs.
 *
 * Level k holds the downsets that may be border k. For a stage [A, B) of stage k, whose transfers
 * are at least in(A) + out(B) minus what crosses both borders, the load is at least
 *     [slow * work(B) + out(B) - both(B)] - [slow * work(A) - in(A)],
 * so a candidate B is out if this misses the target for every A of the level before, and likewise
 * for A. Repeated until nothing changes. */
#ifndef SMP_PARTITION_PROVE_EXACT_LEVELS_H
#define SMP_PARTITION_PROVE_EXACT_LEVELS_H

#include "partition/prove/exact.h"

typedef struct smp__level {
    int32_t n;
    int32_t capacity;
    int32_t *member; /* [n] downsets */
    int32_t *region; /* [n_region] everything between the window's sets, smaller ones first */
    int32_t n_region;
    double *value;                /* [n] the slowest stage up to (after) this border, at best */
    int32_t *link;                /* [n] the downset at the border before (after) that gives it */
    double *both_us;              /* [n] transfers of nets that may cross the border before, too */
    uint64_t *certain, *possible; /* [words] what all members, and what some members enclose */
} smp__level;

typedef struct smp__exact_state {
    const smp__window *window;
    const smp__units *units;
    smp__downsets pool;
    smp__level *level; /* [n_stage + 1] */
    double cut_us;     /* loads of interest are below */
    int64_t work;      /* left */
    double deadline_s;
    int64_t next_check; /* of the clock, by work left */
    size_t member_bytes, max_member_bytes;
    bool limited, late;

    /* A walk's marks, by downset. */
    int32_t *mark;      /* source that reached it last */
    int32_t *slot;      /* where it stands in the target level, or -1 */
    double (*least)[2]; /* compute and sent, or both in the first, of the targets above it */
    int32_t *stack;
    double (*moved_us)[2]; /* received; sent on by the source's crossing nets that are used up */
    double (*kept)[4]; /* the same in bytes; shared weights; largest workspace. If memory binds */
    int32_t *net_mark; /* [n_net] source whose border it crosses */
    int32_t *share_mark;
    int32_t *near; /* [n_net] nets that may cross the source's border */
    int32_t n_near;
    int32_t stamp;
    int join_stage; /* the one that completes the best pipeline, and its borders */
    int32_t join_from, join_to;
    double best_us;
    smp_arena *arena;
} smp__exact_state;

/* False once the work or the time is used up. */
bool smp__exact_charge(smp__exact_state *state, int64_t work);

/* Lists the candidates of every border; state->limited if they are too many. */
smp_status smp__levels_list(smp__exact_state *state);
/* Drops candidates of levels first..last that no stage below the cut can use. */
void smp__levels_tighten(smp__exact_state *state, int first, int last);
/* Drops the members of a level whose value is not below the cut. */
void smp__level_keep_reached(smp__exact_state *state, smp__level *level);
void smp__levels_free(smp__exact_state *state);

#endif
