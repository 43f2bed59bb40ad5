/* The directory of checkpoints: names, which was saved last, what is removed. */
#ifndef SMP_EXEC_CHECKPOINT_CHECKPOINT_FOLDER_H
#define SMP_EXEC_CHECKPOINT_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

enum { SMP__CHECKPOINT_PATH_BYTES = 4096, SMP__RECEIPT_BYTES = 3072 };

/* "DIR/checkpoint-0000000020.smp" */
void smp__checkpoint_path(char path[SMP__CHECKPOINT_PATH_BYTES], const char *directory,
                          int64_t step);

/* Is the name of a file that of a complete checkpoint? */
bool smp__checkpoint_step(const char *name, int64_t *step);

/* Where that of a job is written, next to it: "DIR/JOB.checkpoint-0000000020.smp.part". */
void smp__checkpoint_part_path(char path[SMP__CHECKPOINT_PATH_BYTES], const char *directory,
                               const char *job, int64_t step);

/* Does the directory hold a file with the name of a complete checkpoint? */
bool smp__checkpoint_exists(const char *directory);

/* What is known of a checkpoint without its weights. */
typedef struct smp__saved {
    int64_t step;  /* in the name */
    int64_t saved; /* in the header; INT64_MAX where that cannot be read */
    double loss;   /* of its evaluation, in the header; INFINITY: none is there */
} smp__saved;

/* All checkpoints, what was saved last first: those whose header cannot be read, by falling step,
 * then the others by falling `saved`, then version 1's by falling step. *list is malloc'ed. */
smp_status smp__checkpoint_list(const char *directory, smp__saved **list, int *n);
/* Which of a list has the lowest loss, of equals what was saved first; -1: none has one. */
int smp__checkpoint_best(const smp__saved *list, int n);
/* The last save whose header can be read; NULL: there is none. */
const smp__saved *smp__checkpoint_last(const smp__saved *list, int n);
/* Number of the next save. */
smp_status smp__checkpoint_next(const char *directory, int64_t *saved);

/* Makes the directory unless it is there; then what it lies in is synced. SMP_ERR_INPUT: it cannot
 * be made; SMP_ERR_FAILED: not synced, and not there. */
smp_status smp__checkpoint_folder_make(const char *directory);
/* What was made, renamed or removed in it survives a crash of the machine, or SMP_ERR_FAILED. */
smp_status smp__checkpoint_folder_sync(const char *directory);
/* Keeps the `keep` saved last, the one with the lowest loss, and what cannot be read; removes what
 * is half written, of whatever job. Call it when no save is under way, as who holds the lock. */
smp_status smp__checkpoint_prune(const char *directory, int keep);

/* The next value of a word in the lines of a receipt, "word value": *length bytes; NULL: there is
 * none. receipt: at a line, or after a value. */
const char *smp__receipt_value(const char *receipt, const char *word, size_t *length);
/* The receipt (exec/job/receipt.h) of a checkpoint; "" where it has none. */
smp_status smp__checkpoint_receipt(const char *path, char receipt[SMP__RECEIPT_BYTES]);
/* The receipt of the one in the directory that a job will load, the best or the last, as far as
 * headers tell. Sets *found: there is one. */
smp_status smp__checkpoint_find_receipt(const char *directory, bool best, bool *found,
                                        char receipt[SMP__RECEIPT_BYTES]);

#endif
