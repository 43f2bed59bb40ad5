/* A lane with more cells than can be told apart, as shares of the kinds in columns of equal time.
 * Linear in cells and columns. */
#include <math.h>
#include <string.h>

#include "tools/show/picture_model.h"

static void count_bins(const smp__lane *lane, double bin_us, smp__shares bins)
{
    for (int64_t i = 0; i < lane->n; i++) {
        const smp__cell *c = &lane->cell[i];
        int last = (int)(c->end_us / bin_us);
        for (int x = (int)(c->start_us / bin_us); x <= last && x < SMP__SHARE_BINS; x++) {
            double from = fmax(c->start_us, x * bin_us), to = fmin(c->end_us, (x + 1) * bin_us);
            bins[smp__cell_class(c->kind)][x] += to > from ? (to - from) / bin_us : 0.0;
        }
    }
}

/* Moving averages over 2 reach + 1 columns of from .. to-1. */
static void average(double *bin, int from, int to, int reach)
{
    double sums[SMP__SHARE_BINS + 1];
    sums[from] = 0.0;
    for (int x = from; x < to; x++)
        sums[x + 1] = sums[x] + bin[x];
    for (int x = from; x < to; x++) {
        int a = x - reach < from ? from : x - reach, b = x + reach + 1 > to ? to : x + reach + 1;
        bin[x] = (sums[b] - sums[a]) / (b - a);
    }
}

/* Averages over some cells, else columns would show which of them happen to fall into each; but
 * not beyond a gap that is longer than what is averaged. */
static void smooth(const smp__lane *lane, double bin_us, smp__shares bins)
{
    int reach = (int)ceil(4.0 * SMP__SHARE_BINS / (double)lane->n);
    int from = lane->n > 0 ? (int)(lane->cell[0].start_us / bin_us) : SMP__SHARE_BINS;
    for (int64_t i = 0; i < lane->n; i++) {
        int end = (int)ceil(lane->cell[i].end_us / bin_us), next = 2 * SMP__SHARE_BINS + 2 * reach;
        if (i + 1 < lane->n)
            next = (int)(lane->cell[i + 1].start_us / bin_us);
        if (next - end <= 2 * reach)
            continue;
        end = end < SMP__SHARE_BINS ? end : SMP__SHARE_BINS;
        for (int class = 0; class < SMP__CELL_CLASSES && from < end; class ++)
            average(bins[class], from, end, reach);
        from = next;
    }
}

void smp__lane_shares(const smp__lane *lane, double bin_us, smp__shares bins)
{
    memset(bins, 0, sizeof(smp__shares));
    count_bins(lane, bin_us, bins);
    smooth(lane, bin_us, bins);
}
