/* A bound on the step by paths where ops are whole.
 *
 * The bound by paths (path_bound.c) lets every op be shared out over the stages. But stages are
 * cut between ops. Take the heaviest ops of the longest chain as marks. They stand in order, so
 * a stage holds a run of them, maybe none, and with two marks of a run all ops that can lie
 * nowhere else: those between them on the chain, and those beside it that are not in front of
 * the one nor after the other. So by any path, or mean of paths, a step is at least
 *
 *     sum over ops of the cost where the op is cheapest
 *       + sum over stages of what the ops that its run encloses cost more there than that.
 *
 * Ops that no run encloses count as where they are cheapest.
 *
 * A path leads from stage to stage along the chain, and a stage may stand beside it. If each
 * stage runs ahead of the next one (it has at least as many forwards before a backward), then
 * for every path there is another one that goes round that stage and has all its other actions:
 * where the path comes from the stage before and goes back there or on to the one after, it can
 * wait in the stage before, and where it comes from the one after, in that. So the sum still
 * holds without what the stage itself holds, which is no more than all ops beside the chain that
 * can lie at its place, where they are cheapest; and without what messages take.
 *
 * Is there a sequence of borders for which no path is above a target? Each path of a set gives,
 * by dynamic programming, the least that lies before a border and after it; runs that are above
 * the target by any path drop out, and what is left is searched from the first stage on, each
 * path pruning. Borders that pass get a path of their own, the longest where the stages weigh
 * what their runs enclose: if it is above the target it joins the set, otherwise the target
 * stands. A search that ends without any refutes the target, which is a bound then. Targets
 * halve the distance that is left. */
#include "schedule/order_bound/border_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

enum {
    MOST_MARKS = 320,
    MOST_PATHS = 48,
    STAGE_PATHS = 32, /* of them to begin with */
    TARGETS = 8,
    PASSES = 2 /* of all paths over the runs */
};
#define WORK 8e7 /* runs looked at, and the like */
#define CLOSE 2e-4

typedef enum answer {
    REFUTED,
    OPEN, /* not refuted, or too much to do */
    FAILED
} answer;

/* Marks begin .. end - 1 on a stage. */
typedef struct run {
    int16_t stage, begin, end;
} run;

typedef struct member {
    smp__path path;
    double least_us;  /* all ops where they are cheapest, and messages */
    double *cheapest; /* [borders * borders] what a run encloses where it is cheapest */
    double *beside;   /* [borders] what does not count with a stage beside the chain */
    double *behind;   /* [stages + 1][borders] the least from a border on, over cheapest */
} member;

typedef struct border_bound {
    const smp__border_problem *problem;
    const smp__path_problem *in;
    smp__whole_ops *whole;
    int n_stage;
    int n; /* marks; the first and the last are no ops, but the ends of the first and the last
              stage */
    int32_t *first;      /* [n_op] the mark that the op is not in front of */
    int32_t *last;       /* [n_op] that it is not after */
    bool *is_free;       /* [n + 1] an op may lie in front of the mark with no mark of a run */
    smp__op_times *load; /* [(n + 1) * (n + 1)] of what a run encloses */
    smp__op_times *sum;  /* [n + 1] scratch */
    member member[MOST_PATHS];
    int last_pruned;             /* member */
    int n_member, n_fixed, next; /* the fixed stay; of the others the oldest is replaced */
    run *all, *run;              /* by stage and begin; all: not above the highest target */
    double *run_us;              /* by the path at hand */
    int32_t n_all, n_run;
    int32_t *run_begin;        /* [n_stage * (n + 1) + 1] */
    double *front;             /* [n_stage + 1][n + 1] the least up to a border */
    double *placed_us;         /* [n_stage + 1][MOST_PATHS] of the stages placed */
    int32_t *border;           /* [n_stage + 1] */
    double *op_us;             /* [n_op] scratch */
    smp__op_times *stage_load; /* [stages] scratch */
    double target_us, root_us; /* root: the best that a path says by itself */
    double work;
    smp_status status;
    smp_arena *arena;
} border_bound;

static double times_us(const smp__op_times *t)
{
    return t->forward_us + t->input_us + t->weight_us;
}

static int falling(const void *left, const void *right)
{
    double a = *(const double *)left, c = *(const double *)right;
    return (a < c) - (a > c);
}

/* Ops of the chain that weigh more are marks; of the `alike` that weigh as much, `marked`. */
typedef struct limit {
    double weight_us;
    int32_t alike, marked;
} limit;

static smp_status find_limit(border_bound *b, limit *out)
{
    const smp__chain *chain = b->whole->chain;
    double *us = SMP_ARENA_NEW(b->arena, double, (size_t)chain->length + 1);
    int32_t n = 0, most = MOST_MARKS;
    most = b->whole->most_marks > 0 && b->whole->most_marks < most ? b->whole->most_marks : most;
    if (!us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < b->in->n_op; o++)
        if (b->whole->chain->on[o])
            us[n++] = times_us(&b->in->op[o]);
    qsort(us, (size_t)n, sizeof *us, falling);
    most = n < most ? n : most;
    *out = (limit){.weight_us = us[most - 1]};
    for (int32_t i = 0; i < n; i++) {
        bool alike = us[i] == us[most - 1];
        out->alike += alike;
        out->marked += alike && i < most;
    }
    return SMP_OK;
}

/* Where ops may lie, in marks: 0 and n - 1 are the ends of the chain, which weigh nothing. */
static smp_status set_marks(border_bound *b)
{
    const smp__chain *chain = b->whole->chain;
    int32_t *marks = SMP_ARENA_NEW(b->arena, int32_t, (size_t)chain->length + 2), n = 0;
    int64_t alike = 0;
    limit limit;
    if (!marks)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(find_limit(b, &limit));
    for (int32_t o = 0; o < b->in->n_op; o++) {
        double us = times_us(&b->in->op[o]);
        if (!chain->on[o] || us < limit.weight_us)
            continue;
        bool is_mark = us > limit.weight_us;
        if (!is_mark) { /* evenly among those alike */
            is_mark = (alike + 1) * limit.marked / limit.alike > alike * limit.marked / limit.alike;
            alike++;
        }
        marks[chain->after[o]] = is_mark;
        n += is_mark;
    }
    for (int32_t c = 1; c <= chain->length + 1; c++) /* now: how many up to there */
        marks[c] += marks[c - 1];
    b->n = n + 2;
    for (int32_t o = 0; o < b->in->n_op; o++) {
        b->first[o] = marks[chain->after[o]];
        b->last[o] = chain->on[o] ? marks[chain->after[o] - 1] + 1 : marks[chain->until[o] - 1] + 1;
    }
    return SMP_OK;
}

/* Where stages may do without marks: they hold ops all the same. */
static smp_status set_free(border_bound *b)
{
    b->is_free = SMP_ARENA_NEW(b->arena, bool, (size_t)b->n + 1);
    for (int32_t o = 0; b->is_free && o < b->in->n_op; o++)
        for (int at = b->first[o] + 1; at <= b->last[o]; at++)
            b->is_free[at] = true;
    return b->is_free ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* The mark that a run without marks stands in front of; 0: it has marks. */
static int bare_at(const border_bound *b, run r)
{
    if (r.end > (r.begin > 1 ? r.begin : 1) && r.begin < b->n - 1)
        return 0;
    return r.end < b->n ? r.end : b->n - 1;
}

static smp__op_times *load_of(const border_bound *b, int begin, int end)
{
    return &b->load[begin * (b->n + 1) + end];
}

static void add_times(smp__op_times *to, const smp__op_times *t)
{
    to->forward_us += t->forward_us;
    to->input_us += t->input_us;
    to->weight_us += t->weight_us;
    to->update_us += t->update_us;
}

/* Runs enclose what lies between any two of their marks. */
static void sum_loads(border_bound *b)
{
    for (int32_t o = 0; o < b->in->n_op; o++)
        add_times(load_of(b, b->first[o], b->last[o] + 1), &b->in->op[o]);
    memset(b->sum, 0, (size_t)(b->n + 1) * sizeof *b->sum);
    for (int begin = b->n - 1; begin >= 0; begin--) {
        smp__op_times enclosed = {0};
        for (int end = begin + 1; end <= b->n; end++) {
            add_times(&b->sum[end], load_of(b, begin, end));
            add_times(&enclosed, &b->sum[end]);
            *load_of(b, begin, end) = enclosed;
        }
    }
}

static void sum_cheapest(const border_bound *b, member *m)
{
    int n = b->n;
    double sum[MOST_MARKS + 3] = {0.0};
    memset(m->cheapest, 0, (size_t)(n + 1) * (size_t)(n + 1) * sizeof *m->cheapest);
    for (int32_t o = 0; o < b->in->n_op; o++)
        m->cheapest[b->first[o] * (n + 1) + b->last[o] + 1] += b->op_us[o];
    for (int begin = n - 1; begin >= 0; begin--) {
        double enclosed = 0.0;
        for (int end = begin + 1; end <= n; end++) {
            sum[end] += m->cheapest[begin * (n + 1) + end];
            enclosed += sum[end];
            m->cheapest[begin * (n + 1) + end] = enclosed;
        }
    }
}

/* Adds up the ops beside the chain that may lie between two marks, and all messages. */
static void sum_beside(const border_bound *b, member *m)
{
    memset(m->beside, 0, ((size_t)b->n + 1) * sizeof *m->beside);
    for (int32_t o = 0; o < b->in->n_op; o++) {
        for (int at = b->first[o] + 1; !b->whole->chain->on[o] && at <= b->last[o]; at++)
            m->beside[at] = fmax(m->beside[at], m->path.message_us) + b->op_us[o];
    }
}

/* The run of a stage between the borders placed. */
static run run_at(const border_bound *b, int stage)
{
    return (run){(int16_t)stage, (int16_t)b->border[stage], (int16_t)b->border[stage + 1]};
}

/* What the run costs there more than where it is cheapest; without marks, what then need not
 * count. */
static double run_us(const border_bound *b, const member *m, run r)
{
    int bare = bare_at(b, r);
    if (bare > 0)
        return -m->beside[bare];
    return smp__path_us(m->path.count, b->n_stage, load_of(b, r.begin, r.end), r.stage) -
           m->cheapest[r.begin * (b->n + 1) + r.end];
}

static smp_status open_member(border_bound *b, member *m)
{
    size_t borders = (size_t)b->n + 1;
    m->path.count = SMP_ARENA_NEW(b->arena, double, SMP__PATH_ROWS *(size_t)b->n_stage);
    m->cheapest = SMP_ARENA_NEW(b->arena, double, borders *borders);
    m->beside = SMP_ARENA_NEW(b->arena, double, borders);
    m->behind = SMP_ARENA_NEW(b->arena, double, ((size_t)b->n_stage + 1) * borders);
    return m->path.count && m->cheapest && m->beside && m->behind ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* The place for one more. */
static smp_status new_member(border_bound *b, member **out)
{
    if (b->n_member < MOST_PATHS) {
        *out = &b->member[b->n_member++];
        return open_member(b, *out);
    }
    *out = &b->member[b->n_fixed + b->next];
    b->next = (b->next + 1) % (MOST_PATHS - b->n_fixed);
    return SMP_OK;
}

/* The path is set: what follows from it. */
static void weigh_member(border_bound *b, member *m)
{
    smp__path_price(b->in, m->path.count, b->op_us);
    m->least_us = m->path.message_us;
    for (int32_t o = 0; o < b->in->n_op; o++)
        m->least_us += b->op_us[o];
    sum_cheapest(b, m);
    sum_beside(b, m);
    b->work -= (double)b->in->n_op * b->n_stage + (double)b->n * b->n +
               3.0 * b->n_stage * b->in->shape->microbatches;
}

/* run_us of all runs, and the least from each border on. */
static void look_behind(border_bound *b, member *m)
{
    int borders = b->n + 1;
    for (int i = 0; i < (b->n_stage + 1) * borders; i++)
        m->behind[i] = INFINITY;
    m->behind[b->n_stage * borders + b->n] = 0.0;
    for (int32_t i = b->n_run - 1; i >= 0; i--) {
        run r = b->run[i];
        b->run_us[i] = run_us(b, m, r);
        double *least = &m->behind[r.stage * borders + r.begin];
        *least = fmin(*least, b->run_us[i] + m->behind[(r.stage + 1) * borders + r.end]);
    }
    b->work -= b->n_run;
}

/* Drops runs that are above the target in every sequence. False: there is no sequence. */
static bool narrow_by(border_bound *b, member *m)
{
    int borders = b->n + 1;
    double room_us = b->target_us - m->least_us;
    look_behind(b, m);
    b->root_us = fmax(b->root_us, m->least_us + m->behind[0]);
    if (m->behind[0] > room_us)
        return false;
    for (int i = 0; i < (b->n_stage + 1) * borders; i++)
        b->front[i] = INFINITY;
    b->front[0] = 0.0;
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_run; i++) {
        run r = b->run[i];
        double us = b->front[r.stage * borders + r.begin] + b->run_us[i];
        if (us + m->behind[(r.stage + 1) * borders + r.end] > room_us)
            continue;
        double *front = &b->front[(r.stage + 1) * borders + r.end];
        *front = fmin(*front, us);
        b->run[n++] = r;
    }
    b->work -= b->n_run;
    b->n_run = n;
    return n > 0;
}

static void index_runs(border_bound *b)
{
    int32_t i = 0;
    for (int k = 0; k < b->n_stage * (b->n + 1); k++) {
        b->run_begin[k] = i;
        while (i < b->n_run && b->run[i].stage * (b->n + 1) + b->run[i].begin == k)
            i++;
    }
    b->run_begin[b->n_stage * (b->n + 1)] = i;
}

/* False: the paths refute the target. */
static bool narrow(border_bound *b)
{
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < b->n_member; i++)
            if (!narrow_by(b, &b->member[i]))
                return false;
    for (int i = 0; i < b->n_member; i++)
        look_behind(b, &b->member[i]);
    index_runs(b);
    return true;
}

/* The stage whose run encloses the op; else one without marks that may hold it, or the first of
 * all. */
static void set_stages(const border_bound *b)
{
    for (int32_t o = 0; o < b->in->n_op; o++) {
        int32_t stage = 0, bare;
        while (b->border[stage + 1] <= b->first[o])
            stage++;
        for (bare = stage; bare < b->n_stage && b->border[bare] <= b->last[o]; bare++) {
            int at = bare_at(b, run_at(b, bare));
            if (at > b->first[o] && at <= b->last[o])
                stage = bare;
        }
        b->whole->stage[o] = stage;
    }
}

/* The longest path where the stages hold the runs placed; REFUTED: it is above the target. */
static answer try_borders(border_bound *b)
{
    member *m;
    for (int k = 0; k < b->n_stage; k++)
        b->stage_load[k] = *load_of(b, b->border[k], b->border[k + 1]);
    b->status = new_member(b, &m);
    if (b->status != SMP_OK)
        return FAILED;
    b->problem->longest(b->problem->context, b->stage_load, &m->path);
    weigh_member(b, m);
    look_behind(b, m);
    double us = 0.0;
    for (int k = 0; k <= b->n_stage; k++) {
        b->placed_us[k * MOST_PATHS + (m - b->member)] = us;
        if (k < b->n_stage)
            us += run_us(b, m, run_at(b, k));
    }
    us += m->least_us;
    if (b->whole->stage && us < b->whole->stage_us) {
        b->whole->stage_us = us;
        set_stages(b);
    }
    return us > b->target_us ? REFUTED : OPEN;
}

/* Whether the run may follow the stages placed, by all paths. */
static bool may_follow(border_bound *b, run r)
{
    const double *placed = &b->placed_us[r.stage * MOST_PATHS];
    double *with = &b->placed_us[(r.stage + 1) * MOST_PATHS];
    size_t at = (size_t)(r.stage + 1) * (size_t)(b->n + 1) + (size_t)r.end;
    for (int k = -1; k < b->n_member; k++) {
        int i = k < 0 ? b->last_pruned : k; /* what pruned once does so again */
        const member *m = &b->member[i];
        b->work -= 1.0;
        with[i] = placed[i] + run_us(b, m, r);
        if (m->least_us + with[i] + m->behind[at] > b->target_us) {
            b->last_pruned = i;
            return false;
        }
    }
    return true;
}

static answer place(border_bound *b, int stage)
{
    if (stage == b->n_stage)
        return try_borders(b);
    int row = stage * (b->n + 1) + b->border[stage];
    for (int32_t i = b->run_begin[row]; i < b->run_begin[row + 1]; i++) {
        if (b->work < 0.0)
            return OPEN;
        if (!may_follow(b, b->run[i]))
            continue;
        b->border[stage + 1] = b->run[i].end;
        answer result = place(b, stage + 1);
        if (result != REFUTED)
            return result;
    }
    return REFUTED;
}

static answer try_target(border_bound *b, double target_us)
{
    b->target_us = target_us;
    b->n_run = b->n_all;
    memcpy(b->run, b->all, (size_t)b->n_all * sizeof *b->run);
    return narrow(b) ? place(b, 0) : REFUTED;
}

/* Past the ends that a run may have: no rank computes for longer than the highest target. */
static int past_end(const border_bound *b, int stage, int begin)
{
    int rank = smp_schedule_stage_rank(b->in->kind, b->in->shape, stage), end = begin + 1;
    double most_us =
        (1.0 + 1e-9) * b->whole->most_us / b->in->slowdown[rank] / b->in->shape->microbatches;
    int last = stage == b->n_stage - 1 ? b->n : b->n - 1;
    while (end <= last && times_us(load_of(b, begin, end)) <= most_us)
        end++;
    return end;
}

/* All runs there are, by stage, begin and end; runs: NULL, or for so many. Returns how many. */
static int32_t list_runs(const border_bound *b, run *runs)
{
    int32_t n = 0;
    for (int k = 0; k < b->n_stage; k++) {
        bool is_last = k == b->n_stage - 1;
        for (int begin = k > 0; begin <= (k > 0 ? b->n - 1 : 0); begin++) {
            int past = past_end(b, k, begin);
            for (int end = is_last ? b->n : begin > 1 ? begin : 1; end < past; end++) {
                run r = {(int16_t)k, (int16_t)begin, (int16_t)end};
                if (bare_at(b, r) > 0 && !b->is_free[bare_at(b, r)])
                    continue;
                if (runs)
                    runs[n] = r;
                n++;
            }
        }
    }
    return n;
}

static smp_status set_runs(border_bound *b)
{
    size_t n;
    b->n_run = list_runs(b, NULL);
    n = (size_t)b->n_run;
    b->all = SMP_ARENA_NEW(b->arena, run, n);
    b->run = SMP_ARENA_NEW(b->arena, run, n);
    b->run_us = SMP_ARENA_NEW(b->arena, double, n);
    b->run_begin = SMP_ARENA_NEW(b->arena, int32_t, (size_t)b->n_stage * ((size_t)b->n + 1) + 1);
    if (!b->all || !b->run || !b->run_us || !b->run_begin)
        return SMP_ERR_NO_MEMORY;
    list_runs(b, b->run);
    return SMP_OK;
}

/* The means, and for a stage each the longest path where nearly everything lies there. */
static smp_status begin_members(border_bound *b)
{
    int n_stage = b->n_stage;
    smp__op_times all = {0};
    member *m;
    for (int32_t o = 0; o < b->in->n_op; o++)
        add_times(&all, &b->in->op[o]);
    for (int i = 0; i < b->problem->n_mean; i++) {
        SMP_TRY(new_member(b, &m));
        memcpy(m->path.count, b->problem->mean[i].count,
               SMP__PATH_ROWS * (size_t)n_stage * sizeof(double));
        m->path.message_us = b->problem->mean[i].message_us;
        weigh_member(b, m);
    }
    int n_path = n_stage < STAGE_PATHS ? n_stage : STAGE_PATHS;
    for (int k = 0; k < n_path; k++) {
        for (int s = 0; s < n_stage; s++) {
            double share = s == k * n_stage / n_path ? 1.0 : 0.01;
            b->stage_load[s] = (smp__op_times){share * all.forward_us, share * all.input_us,
                                               share * all.weight_us, share * all.update_us};
        }
        SMP_TRY(new_member(b, &m));
        b->problem->longest(b->problem->context, b->stage_load, &m->path);
        weigh_member(b, m);
    }
    b->n_fixed = b->n_member;
    return SMP_OK;
}

static smp_status open_bound(border_bound *b)
{
    size_t n_op = (size_t)b->in->n_op, stages = (size_t)b->n_stage + 1;
    b->first = SMP_ARENA_NEW(b->arena, int32_t, n_op);
    b->last = SMP_ARENA_NEW(b->arena, int32_t, n_op);
    b->op_us = SMP_ARENA_NEW(b->arena, double, n_op);
    b->border = SMP_ARENA_NEW(b->arena, int32_t, stages);
    b->placed_us = SMP_ARENA_NEW(b->arena, double, stages *MOST_PATHS);
    b->stage_load = SMP_ARENA_NEW(b->arena, smp__op_times, stages);
    if (!b->stage_load || !b->first || !b->last || !b->op_us || !b->border || !b->placed_us)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(set_marks(b));
    SMP_TRY(set_free(b));
    size_t borders = (size_t)b->n + 1;
    b->load = SMP_ARENA_NEW(b->arena, smp__op_times, borders * borders);
    b->sum = SMP_ARENA_NEW(b->arena, smp__op_times, borders);
    b->front = SMP_ARENA_NEW(b->arena, double, stages *borders);
    if (!b->load || !b->sum || !b->front)
        return SMP_ERR_NO_MEMORY;
    sum_loads(b);
    SMP_TRY(begin_members(b));
    return set_runs(b);
}

smp_status smp__border_bound(const smp__border_problem *problem, smp_arena *arena,
                             smp__whole_ops *whole)
{
    const smp__path_problem *in = problem->in;
    double most_us = whole->most_us;
    border_bound b = {.problem = problem,
                      .in = in,
                      .whole = whole,
                      .n_stage = in->shape->pipeline * in->shape->chunks,
                      .work = WORK,
                      .arena = arena};
    SMP_TRY(open_bound(&b));
    b.target_us = most_us;
    narrow(&b); /* what is above it is above every target */
    double least_us = fmax(whole->bound_us, fmin(b.root_us, most_us));
    b.n_all = b.n_run;
    memcpy(b.all, b.run, (size_t)b.n_run * sizeof *b.run);
    double left = b.work;
    for (int k = 0; k < TARGETS && most_us - least_us > CLOSE * most_us && left > 0.0; k++) {
        if (smp_work_past(in->deadline_s))
            break;
        double target_us = 0.5 * (least_us + most_us);
        const double given = b.work = 0.4 * left;
        left -= b.work;
        answer result = try_target(&b, target_us);
        smp_work_count(SMP_WORK_PROOF, given - b.work);
        left += b.work;
        SMP_TRY(b.status);
        if (result == REFUTED)
            least_us = target_us;
        else
            most_us = fmin(target_us, whole->stage_us);
    }
    whole->bound_us = fmax(whole->bound_us, least_us * (1.0 - 1e-9));
    return SMP_OK;
}
