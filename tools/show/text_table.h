/* Tables of text. Columns are as wide as their widest cell. */
#ifndef SMP_TOOLS_SHOW_TEXT_TABLE_H
#define SMP_TOOLS_SHOW_TEXT_TABLE_H

#include "graph/base/arena.h"
#include "graph/base/text.h"

enum { SMP__CELL = 64 };

/* Cells are put row by row, after the heads; one that starts with '<' is left-aligned. */
typedef struct smp__table {
    smp_arena *arena;
    size_t columns, cells, n; /* n: how many are put */
    char (*cell)[SMP__CELL];
} smp__table;

/* rows: without the heads. */
smp_status smp__table_open(smp__table *table, int columns, int rows, const char *const *heads);
void smp__table_put(smp__table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void smp__table_put_us(smp__table *table, double us);
void smp__table_put_bytes(smp__table *table, int64_t bytes);
/* Appends the table and frees it. */
smp_status smp__table_print(smp__table *table, smp_text *text);

#endif
