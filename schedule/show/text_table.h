/* Tables of text. Columns are as wide as their widest cell. */
#ifndef SMP_SCHEDULE_SHOW_TEXT_TABLE_H
#define SMP_SCHEDULE_SHOW_TEXT_TABLE_H

#include "graph/base/arena.h"
#include "graph/base/text.h"

enum { SMP__CELL = 64 };

/* All cells, row by row; one that starts with '<' is left-aligned. Row 0 is the head. */
typedef struct smp__table {
    smp_arena *arena;
    int columns, rows;
    char (*cell)[SMP__CELL];
} smp__table;

smp_status smp__table_open(smp__table *table, int columns, int rows, const char *const *heads);
char *smp__table_cell(smp__table *table, int row, int column);
/* Appends the table and frees it. */
smp_status smp__table_print(smp__table *table, smp_text *text);

#endif
