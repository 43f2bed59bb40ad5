/* The file that rank 0 writes its output to, and what of it is printed: each step's row once,
 * however often its step is computed, with a loss that has the same bits each time.
 *
 * It lies beside the folder of kept states, in memory that outlives processes: no line is lost with
 * a launcher or a supervisor. Its head of 64 bytes says of which job it is and up to where it has
 * been printed. Its lock keeps a second supervisor away. */
#ifndef SMP_TOOLS_ELASTIC_OUTPUT_ROWS_FILE_H
#define SMP_TOOLS_ELASTIC_OUTPUT_ROWS_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/text.h"

typedef struct smp__step_bits {
    int64_t step;
    uint64_t bits; /* of the loss */
} smp__step_bits;

typedef struct smp__rows {
    char *path;
    int file;
    char job[17];
    int64_t read_to, printing_to, printed_to, freed_to; /* offsets */
    int64_t last;                                       /* the highest step done, 0: none */
    int64_t row, evaluation;  /* the highest step whose line has been printed */
    int64_t first, at;        /* steps since smp__rows_begin: the first, the last; 0: none yet */
    int64_t n_again;          /* ... of these, computed again */
    bool loaded, from_memory; /* likewise: ranks have a state, from there, ... */
    double fetched;           /* ... bytes of it that hosts had from others */
    smp__step_bits *seen;     /* [SMP__ROWS_SEEN] at step % SMP__ROWS_SEEN */
    int64_t room_to;          /* offset; is reserved */
    bool lost;                /* rows: there was no room for them */
    bool fresh;               /* nothing was in it */
    bool silent;              /* ranks that are gone have written what is read */
    /* A rank is so many times slower than most, 1: no more. Not of ranks that are gone. */
    void (*tell_pace)(void *context, int rank, double times);
    void *context;
} smp__rows;

enum { SMP__ROWS_SEEN = 1 << 16 };

/* Opens the file and locks it. SMP_ERR_INPUT: another supervisor has it, or another user. */
smp_status smp__rows_open(const char *path, smp__rows *out);
/* Goes on after what was printed of that job, or begins; printed: the last row that is known to be
 * where the file is of another job. */
smp_status smp__rows_take(smp__rows *rows, const char *job, int64_t printed);
/* Ranks are about to be started, none runs: what the last has not written to its end is dropped. */
smp_status smp__rows_begin(smp__rows *rows);
/* Ranks have ended well: what they have written last is a line, even without its end. */
void smp__rows_end_line(smp__rows *rows);
/* Reads what is new and prints of it what the reader takes. SMP_ERR_FAILED: a step has another loss
 * than before. */
smp_status smp__rows_read(smp__rows *rows);
/* Prints what of that is left. */
smp_status smp__rows_print(smp__rows *rows);
/* Is nothing left? */
bool smp__rows_printed(const smp__rows *rows);
/* remove: nobody goes on after this. */
void smp__rows_close(smp__rows *rows, bool remove);

#endif
