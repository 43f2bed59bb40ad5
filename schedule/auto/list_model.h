/* What the list scheduler works on: an order is a word over letters, one word per rank, and its
 * times follow from the costs. Shared by list_model.c, list_build.c, list_improve.c and
 * list_schedule.c.
 *
 * On a rank, the F, I, W (or B) actions of one chunk stand in micro-batch order. So which
 * micro-batch a letter stands for follows from how many equal letters stand before it. */
#ifndef SMP_SCHEDULE_AUTO_LIST_MODEL_H
#define SMP_SCHEDULE_AUTO_LIST_MODEL_H

#include "schedule/lower/crossing.h"
#include "schedule/auto/list_schedule.h"

/* chunk * 4 + kind; kinds as in smp_action_kind: F, B, I, W. */
typedef uint16_t smp__letter;

enum { SMP__LETTER_KINDS = 4 };

static inline smp__letter smp__letter_of(int chunk, smp_action_kind kind)
{
    return (smp__letter)(chunk * SMP__LETTER_KINDS + (int)kind);
}

static inline smp_action_kind smp__letter_kind(smp__letter letter)
{
    return (smp_action_kind)(letter % SMP__LETTER_KINDS);
}

static inline int smp__letter_chunk(smp__letter letter)
{
    return letter / SMP__LETTER_KINDS;
}

typedef struct smp__word {
    smp__letter *letter; /* [n], room for 3 * chunks * microbatches */
    int n;
} smp__word;

/* A message of a stage, in the order in which the rank sends them. */
typedef struct smp__list_message {
    int32_t transfer;
    int32_t link; /* numbered over all ordered pairs of ranks */
    int to_rank;
    double us;
} smp__list_message;

/* Messages of a stage and kind: [begin, end). */
typedef struct smp__list_span {
    int32_t begin, end;
} smp__list_span;

/* What a rank has done so far of each chunk. */
typedef struct smp__list_count {
    int forward, input, weight;
} smp__list_count;

typedef struct smp__list {
    const smp_list_input *input;
    smp_arena *arena;
    smp__crossing crossing;
    int n_rank, chunks, microbatches, n_stage;
    double *cost_us[SMP__LETTER_KINDS]; /* [n_stage] by kind */
    smp__list_message *message;         /* of all stages */
    smp__list_span *out[2], *in[2];     /* [n_stage] into message, into incoming */
    int32_t *incoming;                  /* transfers */
    int n_link;
    /* the last evaluation */
    double step_us;
    double *arrival_us; /* [n_transfer * microbatches], -1: not sent */
    double *link_us;    /* [n_link] when it is free */
    int64_t *made_at;   /* [2 * n_stage * microbatches] place of F, of B or I; -1: not done */
    double *start_us;   /* by place: rank * longest + position */
    double *end_us;
    int32_t *mb_at;         /* by place */
    double *now_us;         /* [n_rank] */
    int *next;              /* [n_rank] position */
    smp__list_count *count; /* [n_rank * chunks] */
    int *queue;             /* ring of ranks */
    bool *queued;
    int longest; /* letters of a rank at most */
} smp__list;

smp_status smp__list_open(const smp_list_input *input, smp__list *list);
void smp__list_close(smp__list *list);

static inline int smp__list_stage(const smp__list *list, int rank, int chunk)
{
    return list->crossing.stage_of[(int64_t)rank * list->chunks + chunk];
}

static inline int64_t smp__list_made(const smp__list *list, smp_transfer_kind kind, int stage,
                                     int mb)
{
    return ((int64_t)kind * list->n_stage + stage) * list->microbatches + mb;
}

/* Words with room, and copies of contents. */
smp_status smp__words_create(const smp__list *list, smp__word **out);
void smp__words_copy(const smp__list *list, const smp__word *from, smp__word *to);

/* Legal on its rank: complete, F before I before W, within the memory limit. O(n). */
bool smp__word_is_legal(const smp__list *list, int rank, const smp__word *word);

/* Times of all actions; false: the orders deadlock. step_us is the latest end with tail. What
 * smp_simulate says of the lowered orders, with overlap and without shared cores. O(actions). */
bool smp__list_evaluate(smp__list *list, const smp__word *word);

/* When the inputs of a stage's action are there: -1 if one has not been sent. */
double smp__list_ready_us(const smp__list *list, smp_transfer_kind kind, int stage, int mb);
/* Puts the messages of an action that ends now on their links. */
void smp__list_send(smp__list *list, smp_transfer_kind kind, int stage, int mb, double end_us);
/* Forgets all times. */
void smp__list_reset(smp__list *list);

/* list_build.c: greedy orders. A rank that is free takes what can begin first; ties and what is
 * left open follow the policy. */
typedef enum smp__list_weight {
    SMP__WEIGHT_AT_ONCE, /* W right after I */
    SMP__WEIGHT_FILLS,   /* when no F or I can begin */
    SMP__WEIGHT_FITS     /* the same, and only if it is done before the next one can begin */
} smp__list_weight;

typedef struct smp__list_policy {
    smp__list_weight weight;
    int ahead; /* forwards ahead of backwards: as many halves of the stages after; 0: any */
    bool forward_first; /* when both F and I can begin: F */
    bool deep_first;    /* of several F, the later chunk's */
} smp__list_policy;

/* Leaves the order in `word`, legal. false: it got stuck, the limit is too low.
 * O(actions * (chunks + log ranks)). */
smp_status smp__list_build(smp__list *list, const smp__list_policy *policy, smp__word *word,
                           bool *done);

/* list_improve.c: moves letters on the critical path, `budget` evaluations at most. word is
 * replaced by the best found, *step_us its time; never worse. */
smp_status smp__list_improve(smp__list *list, smp__word *word, int64_t budget, double *step_us);
/* Makes B of I and W, for a whole chunk of a rank at a time, where that costs no time. */
smp_status smp__list_merge(smp__list *list, smp__word *word, int64_t budget, double *step_us);

/* list_bound.c */
smp_status smp__list_bound(const smp__list *list, double *bound_us);

#endif
