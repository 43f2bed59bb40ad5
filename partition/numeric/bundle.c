/* The proximal bundle method (Kiwiel 1990; Lemarechal and others). The linear functions told so
 * far, the cuts, are a model of the function that is nowhere below it. The next point is where the
 * model less |x - best|^2 / (2 t) is highest. If the function keeps a tenth of what the model
 * promised there, that is the new best point; else the model has learnt. Single slopes say little
 * here, since the cheapest assignment crowds on a rank or two; together they do.
 *
 * The highest point is that of a mean of cuts, x = P(best + t * mean of slopes), P being the
 * nearest point that is allowed. Its parts are found in steps that take weight from the cut that is
 * highest at x to the lowest one, as far as would make them equal without P; P only brings points
 * closer. */
#include "partition/numeric/bundle.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    MAX_CUTS = 48,
    MAX_PARTS = 80, /* steps of the inner problem */
    MAX_SHIFTS = 30,
    PATIENCE = 6, /* points without a better one, then nearer ones */
    FARTHER = 8   /* times that a better point is looked for farther off before it is given up */
};
#define KEPT 0.1       /* of what the model promises */
#define FIRST_MOVE 0.1 /* of the first point, along the first slope */

typedef struct cut {
    double at_zero, part; /* value of the linear function at 0, share of the mean */
    double *slope;        /* [n] */
} cut;

struct smp__bundle {
    int n, n_weight, n_cut, idle;
    double *best, *point, *mean; /* [n] */
    double best_value, reach;    /* reach: t */
    bool begun;
    cut cut[MAX_CUTS];
};

static double dot(int n, const double *a, const double *b)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double cut_at(const smp__bundle *b, const cut *c, const double *x)
{
    return c->at_zero + dot(b->n, c->slope, x);
}

/* The nearest weights that are not negative and sum up to 1. */
static void project_weights(double *x, int n)
{
    double low = INFINITY, high = -INFINITY, sum = 0.0;
    for (int i = 0; i < n; i++) {
        low = fmin(low, x[i] - 1.0);
        high = fmax(high, x[i]);
    }
    for (int k = 0; k < 40; k++) {
        double middle = 0.5 * (low + high);
        sum = 0.0;
        for (int i = 0; i < n; i++)
            sum += fmax(0.0, x[i] - middle);
        *(sum > 1.0 ? &low : &high) = middle;
    }
    sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += x[i] = fmax(0.0, x[i] - low);
    for (int i = 0; i < n; i++)
        x[i] /= sum;
}

/* The allowed point nearest to best + t * mean slope. */
static void place_point(smp__bundle *b)
{
    for (int i = 0; i < b->n; i++)
        b->point[i] = b->best[i] + b->reach * b->mean[i];
    project_weights(b->point, b->n_weight);
    for (int i = b->n_weight; i < b->n; i++)
        b->point[i] = fmax(0.0, b->point[i]);
}

static void fill_mean(smp__bundle *b)
{
    memset(b->mean, 0, (size_t)b->n * sizeof *b->mean);
    for (int k = 0; k < b->n_cut; k++)
        for (int i = 0; i < b->n; i++)
            b->mean[i] += b->cut[k].part * b->cut[k].slope[i];
}

/* Takes so much of the mean from one cut to another. */
static void shift(smp__bundle *b, int from, int to, double part)
{
    b->cut[to].part += part;
    b->cut[from].part = part < b->cut[from].part ? b->cut[from].part - part : 0.0;
    for (int i = 0; i < b->n; i++)
        b->mean[i] += part * (b->cut[to].slope[i] - b->cut[from].slope[i]);
    place_point(b);
}

/* What would make both equal without P, or more as long as the one stays lower: nearly equal. */
static void even_out(smp__bundle *b, int high, int low, double apart)
{
    double square = 0.0, part;
    for (int i = 0; i < b->n; i++) {
        double by = b->cut[low].slope[i] - b->cut[high].slope[i];
        square += by * by;
    }
    part = apart / fmax(b->reach * square, DBL_MIN);
    for (int i = 0, grow = 4; i < MAX_SHIFTS; i++) {
        part = fmin(part, b->cut[high].part);
        shift(b, high, low, part);
        double left = cut_at(b, &b->cut[high], b->point) - cut_at(b, &b->cut[low], b->point);
        if (fabs(left) <= 0.5 * apart || (left > 0.0 && !(b->cut[high].part > 0.0)))
            return;
        if (left < 0.0) { /* too much */
            shift(b, low, high, part);
            grow = 1;
            part *= 0.3;
        } else {
            part *= grow;
        }
    }
}

/* Sets the next point; the value of the model there. */
static double find_point(smp__bundle *b, double least)
{
    double at_low = INFINITY;
    fill_mean(b);
    place_point(b);
    for (int step = 0; step < MAX_PARTS; step++) {
        int low = 0, high = -1;
        double at_high = -INFINITY;
        at_low = INFINITY;
        for (int k = 0; k < b->n_cut; k++) {
            double at = cut_at(b, &b->cut[k], b->point);
            if (at < at_low) {
                at_low = at;
                low = k;
            }
            if (b->cut[k].part > 0.0 && at > at_high) {
                at_high = at;
                high = k;
            }
        }
        if (high < 0 || at_high - at_low <= 0.25 * least)
            break;
        even_out(b, high, low, at_high - at_low);
    }
    return at_low;
}

/* A place for one more: that of the one highest at the best point, of those without a part if there
 * are any. */
static cut *make_room(smp__bundle *b)
{
    int out = 0;
    double most = -INFINITY;
    if (b->n_cut < MAX_CUTS)
        return &b->cut[b->n_cut++];
    for (int k = 0; k < MAX_CUTS; k++) {
        double by = cut_at(b, &b->cut[k], b->best) - b->best_value;
        by = b->cut[k].part > 0.0 ? -b->cut[k].part : by;
        if (by > most) {
            most = by;
            out = k;
        }
    }
    double left = 1.0 - b->cut[out].part;
    for (int k = 0; k < MAX_CUTS && left > 0.0; k++)
        b->cut[k].part /= left;
    return &b->cut[out];
}

smp_status smp__bundle_create(smp_arena *arena, int n, int n_weight, const double *start,
                              smp__bundle **out)
{
    smp__bundle *b = SMP_ARENA_NEW(arena, smp__bundle, 1);
    double *all = SMP_ARENA_NEW(arena, double, (size_t)n *(MAX_CUTS + 3));
    if (!b || !all)
        return SMP_ERR_NO_MEMORY;
    *b = (smp__bundle){.n = n, .n_weight = n_weight, .best = all, .point = all + n};
    b->mean = all + 2 * n;
    for (int k = 0; k < MAX_CUTS; k++)
        b->cut[k].slope = all + (3 + k) * n;
    memcpy(b->point, start, (size_t)n * sizeof *start);
    *out = b;
    return SMP_OK;
}

const double *smp__bundle_point(const smp__bundle *bundle)
{
    return bundle->point;
}

double smp__bundle_best(const smp__bundle *bundle)
{
    return bundle->best_value;
}

/* What all weights have in common says nothing, for they sum up to 1, and would hide what
 * differs. */
static void add_cut(smp__bundle *b, double value, const double *slope)
{
    cut *made = make_room(b);
    double common = 0.0;
    for (int i = 0; i < b->n_weight; i++)
        common += slope[i] / b->n_weight;
    for (int i = 0; i < b->n; i++)
        made->slope[i] = slope[i] - (i < b->n_weight ? common : 0.0);
    made->at_zero = value - dot(b->n, made->slope, b->point);
    made->part = b->begun ? 0.0 : 1.0;
}

/* Farther where the model was right, nearer where it has been wrong for long. */
static void judge_point(smp__bundle *b, double value, double model)
{
    double gain = value - b->best_value, promised = model - b->best_value;
    b->idle++;
    if (gain < KEPT * promised) {
        if (b->idle % PATIENCE == 0)
            b->reach *= 0.5;
        return;
    }
    b->reach *= gain > 0.5 * promised ? 2.0 : 1.0;
    b->idle = 0;
}

bool smp__bundle_tell(smp__bundle *b, double value, const double *slope, double least)
{
    double model = INFINITY;
    for (int k = 0; k < b->n_cut; k++)
        model = fmin(model, cut_at(b, &b->cut[k], b->point));
    add_cut(b, value, slope);
    if (b->begun)
        judge_point(b, value, model);
    else
        b->reach = FIRST_MOVE / fmax(sqrt(dot(b->n, b->cut[0].slope, b->cut[0].slope)), DBL_MIN);
    if (!b->begun || value > b->best_value) {
        b->best_value = value;
        memcpy(b->best, b->point, (size_t)b->n * sizeof *b->best);
    }
    b->begun = true;
    for (int i = 0; i < FARTHER; i++) { /* near the best point alone little is promised anywhere */
        if (find_point(b, least) - b->best_value > least)
            return true;
        b->reach *= 8.0;
    }
    return false;
}
