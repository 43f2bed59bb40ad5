/* A table made of the rows of others; see the header. */
#include <stdlib.h>
#include <string.h>

#include "tools/options/options.h"

static bool has_name(const smp_option *row, const char *name)
{
    return name && row->kind != SMP_OPTION_HEADING &&
           (strcmp(row->name, name) == 0 || (row->alias && strcmp(row->alias, name) == 0));
}

static bool is_taken(const smp_option *rows, size_t n, const smp_option *row)
{
    for (size_t i = 0; i < n; i++)
        if (has_name(&rows[i], row->name) || has_name(&rows[i], row->alias))
            return true;
    return false;
}

static bool is_heading(const smp_option *rows, size_t n)
{
    return n > 0 && rows[n - 1].kind == SMP_OPTION_HEADING;
}

smp_status smp_options_join(const smp_option_part *part, int n_part, smp_option **out)
{
    size_t most = 1, n = 0;
    for (int i = 0; i < n_part; i++)
        for (const smp_option *row = part[i].row; row->name; row++)
            most++;
    smp_option *rows = calloc(most, sizeof *rows);
    if (!rows)
        return smp_fail_memory(most * sizeof *rows);
    for (int i = 0; i < n_part; i++)
        for (const smp_option *row = part[i].row; row->name; row++) {
            const bool heading = row->kind == SMP_OPTION_HEADING;
            if (!heading && (is_taken(rows, n, row) || (part[i].takes && !part[i].takes(row))))
                continue;
            n -= heading && is_heading(rows, n);
            rows[n] = *row;
            rows[n].base = part[i].base;
            rows[n++].part = i;
        }
    n -= is_heading(rows, n);
    rows[n] = (smp_option){0};
    *out = rows;
    return SMP_OK;
}
