/* The life of an elastic job, read back from the events that its supervisors append to a file
 * (smp-run --elastic --events): which devices it had, when it did steps, and what every failure
 * cost. Times are seconds from the first event. */
#ifndef SMP_TOOLS_LIFE_JOB_LIFE_H
#define SMP_TOOLS_LIFE_JOB_LIFE_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/text.h"

/* What the job did: key of an event's seconds, text, letter of the drawing. */
#define SMP__LIFE_PARTS(X)                                                                         \
    X(STEPS, "", "steps", "u")                                                                     \
    X(DETECT, "detect_s", "detect", "d")                                                           \
    X(PAUSE, "pause_s", "pause", "w")                                                              \
    X(PLAN, "plan_s", "plan", "p")                                                                 \
    X(START, "start_s", "start", "r")                                                              \
    X(LOAD, "load_s", "load", "l")

typedef enum smp__life_part {
#define SMP__LIFE_ENUM(name, key, text, letter) SMP__LIFE_##name,
    SMP__LIFE_PARTS(SMP__LIFE_ENUM)
#undef SMP__LIFE_ENUM
        SMP__LIFE_N_PARTS
} smp__life_part;

typedef struct smp__life_form {
    const char *key, *text, *letter;
} smp__life_form;
extern const smp__life_form smp__life_forms[SMP__LIFE_N_PARTS];

typedef struct smp__life_level {
    double at_s;
    int devices; /* at hand from then on */
} smp__life_level;

typedef struct smp__life_span {
    smp__life_part part;
    double from_s, to_s;
    int devices;
} smp__life_span;

typedef struct smp__life_rate {
    double from_s, to_s, per_s; /* samples, or steps where a batch is not known */
} smp__life_rate;

/* Something happened. resumed: steps were done again after it, and the rest is known. */
typedef struct smp__life_turn {
    double at_s;
    char what[160]; /* plain text */
    bool resumed;
    int before, after; /* devices; 0: none */
    char from[16];     /* memory, checkpoint, beginning */
    int64_t step, lost_steps;
    double part_s[SMP__LIFE_N_PARTS];
} smp__life_turn;

typedef struct smp__life {
    double length_s; /* up to the last event */
    int most;        /* devices, at any time */
    int supervisors, failures, changes;
    int64_t steps;                    /* the highest that was done */
    int64_t lost_steps;               /* done, and done again */
    double part_s[SMP__LIFE_N_PARTS]; /* STEPS: of steps that count; others: of recoveries */
    bool in_samples;
    bool ended; /* the last supervisor has said so: */
    int exit_code;
    smp__life_level *level;
    smp__life_span *span; /* in the order of their ends */
    smp__life_rate *rate;
    smp__life_turn *turn;
    int n_level, n_span, n_rate, n_turn;
    int64_t skipped;         /* lines that are no events */
    char first_skipped[320]; /* why, of the first */
} smp__life;

/* Reads a file that may be written to meanwhile, by several supervisors one after another. Lines
 * that are no events are counted and passed over; so are events and members of events that are not
 * known. SMP_ERR_INPUT: no file, more than 256 MiB, or no event in it. Linear in lines.
 * To be freed in any case. */
smp_status smp__life_read(const char *path, smp__life *out);
void smp__life_free(smp__life *life);

/* One event, as a line of the file without its end; where: of messages. For smp__life_read and
 * tests. */
typedef struct smp__life_state smp__life_state;
smp_status smp__life_open(smp__life *life, smp__life_state **out);
smp_status smp__life_take(smp__life_state *state, const char *where, const char *line,
                          size_t bytes);
/* What still went on ended with the last event. Frees the state. */
smp_status smp__life_close(smp__life_state *state);

/* Appends a section of the report page: the figure, sums, a row for everything that happened. */
void smp__life_html(const smp__life *life, smp_text *html);
/* Appends the figure as a file of its own. */
void smp__life_svg(const smp__life *life, smp_text *svg);

#endif
