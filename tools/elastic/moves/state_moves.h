/* What hosts have of the state in memory, and what has to move between them for a plan. Hosts are
 * numbers here. */
#ifndef SMP_TOOLS_ELASTIC_MOVES_STATE_MOVES_H
#define SMP_TOOLS_ELASTIC_MOVES_STATE_MOVES_H

#include "exec/save/kept_parts.h"
#include "tools/elastic/moves/move_cost.h"

/* Hosts with devices at hand, in the order of their slots; of n the first n_used get ranks, which
 * are consecutive. */
typedef struct smp__places {
    int n, n_used;
    int host[SMP__MOVE_HOSTS], slots[SMP__MOVE_HOSTS], ranks[SMP__MOVE_HOSTS];
} smp__places;

/* What a plan asks of the hosts. Zero-initialise; smp__move_free, also after an error. */
typedef struct smp__move {
    smp__kept_part *part;         /* [n_used] by place */
    int host_of[SMP__MOVE_HOSTS]; /* the place whose host has this one now */
    int64_t bytes;                /* that hosts lack, all together; 0 where nothing is held */
    double s; /* until the one that lacks most has it, by the links between nodes */
} smp__move;

/* Zero-initialise. */
typedef struct smp__moves {
    smp__spans *held; /* [n_held] by host, of the last state; NULL: not known */
    int n_held;
    smp__kept_part *part; /* [n_part] of the incarnation's machines, ... */
    int *host;            /* ... which these hosts are: theirs once a state is complete */
    int n_part;
    bool launched; /* ... it was */
    int64_t bytes; /* that hosts lack, all together, as the incarnation starts; -1: not known */
    double s;
    double step_us; /* of the incarnation's plan, predicted */
} smp__moves;

/* Hosts with as many slots change places, but for the first, which has rank 0: so that hosts that
 * are used have all of the state, if they can, then that the one that lacks most lacks least.
 * graph, states, keeps: as of smp__kept_parts. */
smp_status smp__moves_weigh(const smp__moves *moves, const smp__places *places,
                            const smp_plan *plan, const smp_graph *graph, int states, bool keeps,
                            smp__move *out);
/* The incarnation that starts has it: its parts are moved. */
smp_status smp__moves_take(smp__moves *moves, const smp__places *places, smp__move *move);
/* The incarnation has ended. kept: it had completed a state, which is what hosts have now (not
 * known where its parts were not taken); else that is what it was, and with nothing in_memory,
 * nothing. */
void smp__moves_end(smp__moves *moves, bool kept, bool in_memory);
void smp__moves_lose(smp__moves *moves, int host); /* it has nothing any more */
void smp__move_free(const smp__places *places, smp__move *move);
void smp__moves_free(smp__moves *moves);

#endif
