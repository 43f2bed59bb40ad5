/* Tables of text; see the header. Linear in the cells. */
#include "schedule/show/text_table.h"

#include <stdio.h>
#include <string.h>

smp_status smp__table_open(smp__table *table, int columns, int rows, const char *const *heads)
{
    table->arena = smp_arena_create();
    table->columns = columns;
    table->rows = rows;
    table->cell = table->arena ? smp_arena_alloc(table->arena, (size_t)columns * (size_t)rows,
                                                 sizeof *table->cell)
                               : NULL;
    if (!table->cell) {
        smp_arena_destroy(table->arena);
        return SMP_ERR_NO_MEMORY;
    }
    for (int column = 0; column < columns; column++)
        snprintf(smp__table_cell(table, 0, column), SMP__CELL, "%s", heads[column]);
    return SMP_OK;
}

char *smp__table_cell(smp__table *table, int row, int column)
{
    return table->cell[(size_t)row * (size_t)table->columns + (size_t)column];
}

static int width_of(const char *cell)
{
    return (int)strlen(cell) - (cell[0] == '<');
}

smp_status smp__table_print(smp__table *table, smp_text *text)
{
    int *width = SMP_ARENA_NEW(table->arena, int, (size_t)table->columns);
    for (int column = 0; width && column < table->columns; column++) {
        for (int row = 0; row < table->rows; row++) {
            int cell = width_of(smp__table_cell(table, row, column));
            width[column] = cell > width[column] ? cell : width[column];
        }
    }
    for (int row = 0; width && row < table->rows; row++) {
        for (int column = 0; column < table->columns; column++) {
            const char *cell = smp__table_cell(table, row, column);
            bool last = column == table->columns - 1;
            smp_text_append(text, "%s", column ? "  " : "");
            if (cell[0] == '<')
                smp_text_append(text, "%-*s", last ? 0 : width[column], cell + 1);
            else
                smp_text_append(text, "%*s", width[column], cell);
        }
        smp_text_append(text, "\n");
    }
    smp_arena_destroy(table->arena);
    if (!width)
        return SMP_ERR_NO_MEMORY;
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
