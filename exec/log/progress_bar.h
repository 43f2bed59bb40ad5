/* A bar on the terminal: how far the run is, and how much longer it takes. Drawn in place on
 * standard error, a few times a second at most, by rank 0 alone.
 *
 * mpirun gives its ranks pipes and passes on what comes out of them: the terminal is then that of
 * the process that started this one. Both streams go through mpirun by themselves, so whatever is
 * printed on standard output takes the bar away itself (smp__bar_lift), even if none stands yet:
 * whichever comes first, no line has a bar in it. */
#ifndef SMP_EXEC_LOG_PROGRESS_BAR_H
#define SMP_EXEC_LOG_PROGRESS_BAR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct smp__progress_bar {
    bool on, stands;
    bool lines_too; /* standard output is a terminal, too */
    int columns;
    int64_t first, last; /* steps: done before this run, and the last one */
    double begin_s, drawn_s;
} smp__progress_bar;

/* Is standard error seen on a terminal? *columns: of it, or 80. */
bool smp__bar_terminal(int *columns);

/* first: steps done before. */
void smp__bar_begin(smp__progress_bar *bar, int64_t first, int64_t last);
/* A step is done; unit: "samples" or "tokens". loss: NaN if there is none. */
void smp__bar_step(smp__progress_bar *bar, int64_t step, double loss, double per_s,
                   const char *unit);
void smp__bar_lift(smp__progress_bar *bar); /* before anything is printed, and at the end */

/* Writes the line of a bar, of at most `columns` - 1 characters, NUL-terminated. left_s < 0: not
 * known. */
void smp__bar_line(char *line, int columns, int64_t step, int64_t last, double loss, double per_s,
                   const char *unit, double left_s);

#endif
