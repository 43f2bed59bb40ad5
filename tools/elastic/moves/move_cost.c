/* Hosts to places; see the header. An assignment of least sum (Kuhn 1955, in the form of successive
 * shortest paths with potentials) is made of those entries alone that do not exceed a bound, which
 * is the least for which there is one. */
#include "tools/elastic/moves/move_cost.h"

#include <stdlib.h>
#include <string.h>

/* The search: rows are places, columns hosts, both from 1; 0 stands for none. */
typedef struct assigning {
    const int64_t *bytes;
    int n;
    int64_t bound, never; /* what exceeds the bound costs more than all else together */
    int64_t *row_price, *column_price, *least;
    int *row_of, *before; /* [n + 1] by column */
    char *seen;
} assigning;

static int64_t cost_of(const assigning *a, int row, int column)
{
    const int64_t bytes = a->bytes[(row - 1) * a->n + column - 1];
    return bytes < 0 || bytes > a->bound ? a->never : bytes;
}

/* The cheapest path from a row that has no column to a column that has no row. */
static int find_path(assigning *a, int row)
{
    int column = 0;
    a->row_of[0] = row;
    memset(a->seen, 0, (size_t)a->n + 1);
    for (int k = 0; k <= a->n; k++)
        a->least[k] = INT64_MAX;
    do {
        int next = 0;
        int64_t delta = INT64_MAX;
        a->seen[column] = 1;
        for (int k = 1; k <= a->n; k++) {
            if (a->seen[k])
                continue;
            const int of = a->row_of[column];
            const int64_t cost = cost_of(a, of, k) - a->row_price[of] - a->column_price[k];
            if (cost < a->least[k]) {
                a->least[k] = cost;
                a->before[k] = column;
            }
            if (a->least[k] < delta) {
                delta = a->least[k];
                next = k;
            }
        }
        for (int k = 0; k <= a->n; k++)
            if (a->seen[k]) {
                a->row_price[a->row_of[k]] += delta;
                a->column_price[k] -= delta;
            } else {
                a->least[k] -= delta;
            }
        column = next;
    } while (a->row_of[column] != 0);
    return column;
}

/* Of least sum within the bound. false: there is none. */
static int assign(assigning *a, int64_t bound, int *host_of)
{
    const size_t n = (size_t)a->n + 1;
    int within = 1;
    a->bound = bound;
    memset(a->row_price, 0, n * sizeof *a->row_price);
    memset(a->column_price, 0, n * sizeof *a->column_price);
    memset(a->row_of, 0, n * sizeof *a->row_of);
    for (int row = 1; row <= a->n; row++)
        for (int column = find_path(a, row); column != 0; column = a->before[column])
            a->row_of[column] = a->row_of[a->before[column]];
    for (int column = 1; column <= a->n; column++) {
        host_of[a->row_of[column] - 1] = column - 1;
        within = within && cost_of(a, a->row_of[column], column) < a->never;
    }
    return within;
}

static int by_size(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void find_least(assigning *a, int64_t *sorted, int *host_of)
{
    const int entries = a->n * a->n;
    int low = 0, high = entries - 1; /* the last is enough for each in its own place */
    memcpy(sorted, a->bytes, (size_t)entries * sizeof *sorted);
    qsort(sorted, (size_t)entries, sizeof *sorted, by_size);
    a->never = 1 + (sorted[high] > 0 ? sorted[high] : 0) * a->n;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (assign(a, sorted[middle], host_of))
            high = middle;
        else
            low = middle + 1;
    }
    assign(a, sorted[low], host_of);
}

static void add_up(const int64_t *bytes, int n, const int *host_of, int64_t *most, int64_t *sum)
{
    *most = *sum = 0;
    for (int p = 0; p < n; p++) {
        const int64_t own = bytes[p * n + (host_of ? host_of[p] : p)];
        *most = own > *most ? own : *most;
        *sum += own;
    }
}

smp_status smp__move_assign(const int64_t *bytes, int n, int *host_of)
{
    const size_t m = (size_t)n + 1, words = 3 * m + (size_t)n * (size_t)n;
    int64_t most[2], sum[2];
    int64_t *memory = calloc(words, sizeof *memory);
    int *indices = calloc(3 * m, sizeof *indices);
    assigning a = {.bytes = bytes, .n = n};
    const smp_status status = memory && indices ? SMP_OK : smp_fail_memory(words * sizeof *memory);
    if (status == SMP_OK) {
        a.row_price = memory;
        a.column_price = memory + m;
        a.least = memory + 2 * m;
        a.row_of = indices;
        a.before = indices + m;
        a.seen = (char *)(indices + 2 * m);
        find_least(&a, memory + 3 * m, host_of);
        add_up(bytes, n, host_of, &most[0], &sum[0]);
        add_up(bytes, n, NULL, &most[1], &sum[1]);
        for (int p = 0; p < n && most[1] == most[0] && sum[1] == sum[0]; p++)
            host_of[p] = p;
    }
    free(memory);
    free(indices);
    return status;
}
