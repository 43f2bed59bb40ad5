/* Tables of text; see the header. Linear in the cells. */
#include "tools/show/text_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

smp_status smp__table_open(smp__table *table, int columns, int rows, const char *const *heads)
{
    *table = (smp__table){.arena = smp_arena_create(), .columns = (size_t)columns};
    table->cells = table->columns * ((size_t)rows + 1);
    if (table->arena)
        table->cell = smp_arena_alloc(table->arena, table->cells, sizeof *table->cell);
    if (!table->cell) {
        smp_arena_destroy(table->arena);
        return SMP_ERR_NO_MEMORY;
    }
    for (int column = 0; column < columns; column++)
        smp__table_put(table, "%s", heads[column]);
    return SMP_OK;
}

void smp__table_put(smp__table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (table->n < table->cells)
        vsnprintf(table->cell[table->n++], SMP__CELL, format, arguments);
    va_end(arguments);
}

void smp__table_put_us(smp__table *table, double us)
{
    char text[32];
    smp__table_put(table, "%s", smp_format_us(text, sizeof text, us));
}

void smp__table_put_bytes(smp__table *table, int64_t bytes)
{
    char text[32];
    smp__table_put(table, "%s", smp_format_bytes(text, sizeof text, bytes));
}

static int width_of(const char *cell)
{
    return (int)strlen(cell) - (cell[0] == '<');
}

smp_status smp__table_print(smp__table *table, smp_text *text)
{
    int *width = SMP_ARENA_NEW(table->arena, int, table->columns);
    for (size_t i = 0; width && i < table->cells; i++) {
        int *column = &width[i % table->columns];
        *column = width_of(table->cell[i]) > *column ? width_of(table->cell[i]) : *column;
    }
    for (size_t i = 0; width && i < table->cells; i++) {
        const char *cell = table->cell[i];
        size_t column = i % table->columns;
        bool last = column == table->columns - 1;
        smp_text_append(text, "%s", column ? "  " : "");
        if (cell[0] == '<')
            smp_text_append(text, "%-*s", last ? 0 : width[column], cell + 1);
        else
            smp_text_append(text, "%*s", width[column], cell);
        smp_text_append(text, "%s", last ? "\n" : "");
    }
    smp_arena_destroy(table->arena);
    if (!width)
        return SMP_ERR_NO_MEMORY;
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
