/* See list_schedule.h. Starts from the orders given and from greedy orders under a number of
 * policies, improves the best few, then merges halves of backwards where that costs no time. The
 * effort bounds how many actions are timed: O(effort), whatever the size. */
#include "schedule/auto/list_schedule.h"

#include <float.h>
#include <math.h>

#include "graph/base/clock.h"
#include "schedule/auto/list_model.h"

enum { N_BEST = 3 };

typedef struct finder {
    smp__list list;
    int64_t actions; /* of an order */
    double left;     /* effort left, in actions */
    smp__word *trial;
    smp__word *best[N_BEST]; /* different times, best first */
    double best_us[N_BEST];
    int n_best;
} finder;

static smp_status check_times(const double *times, int n, const char *what)
{
    for (int i = 0; times && i < n; i++)
        if (!isfinite(times[i]) || times[i] < 0.0)
            return smp_fail(SMP_ERR_INPUT, "%s %d is %g, expected a finite number >= 0", what, i,
                            times[i]);
    return SMP_OK;
}

static smp_status check_input(const smp_list_input *input)
{
    int n = input->flow->n_stage;
    if (input->pipeline < 1 || input->chunks < 1 || input->microbatches < 1 ||
        (int64_t)input->pipeline * input->chunks > SMP_MAX_FORWARDS / input->microbatches)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule auto: pipeline %d, chunks %d, micro-batches %d: expected at "
                        "least 1 of each, and at most %d forwards",
                        input->pipeline, input->chunks, input->microbatches, SMP_MAX_FORWARDS);
    SMP_TRY(check_times(input->forward_us, n, "schedule auto: forward_us of stage"));
    SMP_TRY(check_times(input->input_us, n, "schedule auto: input_us of stage"));
    SMP_TRY(check_times(input->weight_us, n, "schedule auto: weight_us of stage"));
    SMP_TRY(check_times(input->stash_bytes, n, "schedule auto: stash_bytes of stage"));
    SMP_TRY(check_times(input->tail_us, input->pipeline, "schedule auto: tail_us of rank"));
    SMP_TRY(check_times(input->limit_bytes, input->pipeline, "schedule auto: limit of rank"));
    return check_times(input->transfer_us, input->flow->n_transfer,
                       "schedule auto: transfer_us of transfer");
}

/* Room for a micro-batch in every chunk of a rank. */
static smp_status check_limits(const smp__list *l)
{
    for (int rank = 0; l->input->limit_bytes && rank < l->n_rank; rank++) {
        double bytes = 0.0;
        for (int c = 0; c < l->chunks; c++)
            bytes += l->input->stash_bytes[smp__list_stage(l, rank, c)];
        if (bytes > l->input->limit_bytes[rank])
            return smp_fail(SMP_ERR_NO_FIT,
                            "schedule auto: rank %d has %.0f bytes for stashes, one micro-batch "
                            "needs %.0f",
                            rank, l->input->limit_bytes[rank], bytes);
    }
    return SMP_OK;
}

/* Keeps the trial if it is legal and among the best. */
static bool offer(finder *f)
{
    smp__list *l = &f->list;
    for (int rank = 0; rank < l->n_rank; rank++)
        if (!smp__word_is_legal(l, rank, &f->trial[rank]))
            return false;
    f->left -= (double)f->actions;
    if (!smp__list_evaluate(l, f->trial))
        return false;
    int at = 0;
    while (at < f->n_best && f->best_us[at] < l->step_us)
        at++;
    if (at == N_BEST || (at < f->n_best && f->best_us[at] == l->step_us))
        return true;
    smp__word *room = f->best[N_BEST - 1];
    for (int i = N_BEST - 1; i > at; i--) {
        f->best[i] = f->best[i - 1];
        f->best_us[i] = f->best_us[i - 1];
    }
    f->best[at] = room;
    f->best_us[at] = l->step_us;
    f->n_best += f->n_best < N_BEST;
    smp__words_copy(l, f->trial, room);
    return true;
}

/* Letters leave the micro-batch out: it must be the next one. */
static bool is_next(const smp__list *l, int rank, const smp_action *a)
{
    smp__list_count *count = &l->count[(int64_t)rank * l->chunks + a->chunk];
    if (a->kind == SMP_ACTION_F)
        return a->microbatch == count->forward++;
    if (a->kind == SMP_ACTION_B)
        count->weight++;
    return a->microbatch == (a->kind == SMP_ACTION_W ? count->weight++ : count->input++);
}

/* The letters of an order, whole backwards in halves. false: not an order. */
static bool spell(const smp__list *l, int rank, const smp_program *order, smp__word *word)
{
    word->n = 0;
    for (int c = 0; c < l->chunks; c++)
        l->count[(int64_t)rank * l->chunks + c] = (smp__list_count){0};
    for (int64_t i = 0; i < order->n; i++) {
        const smp_action *a = &order->action[i];
        if (!smp_action_is_compute(a->kind) || a->chunk < 0 || a->chunk >= l->chunks ||
            word->n + 2 > l->longest + (a->kind != SMP_ACTION_B) || !is_next(l, rank, a))
            return false;
        if (a->kind == SMP_ACTION_B) {
            word->letter[word->n++] = smp__letter_of(a->chunk, SMP_ACTION_I);
            word->letter[word->n++] = smp__letter_of(a->chunk, SMP_ACTION_W);
        } else {
            word->letter[word->n++] = smp__letter_of(a->chunk, a->kind);
        }
    }
    return true;
}

static void offer_starts(finder *f, const smp_program *starts, int n_start)
{
    for (int i = 0; i < n_start; i++) {
        bool good = true;
        for (int rank = 0; good && rank < f->list.n_rank; rank++)
            good =
                spell(&f->list, rank, &starts[(int64_t)i * f->list.n_rank + rank], &f->trial[rank]);
        if (good)
            offer(f);
    }
}

static bool goes_on(const finder *f)
{
    return f->left > 0.0 && !smp_work_past(f->list.input->deadline_s);
}

/* Greedy orders, the most promising policies first. Making one costs as much as timing a few. */
static smp_status offer_built(finder *f)
{
    static const int ahead[] = {2, 0, 4, 3, 1, 6};
    enum { BUILD_COST = 6 };
    for (size_t a = 0; a < sizeof ahead / sizeof ahead[0]; a++)
        for (int weight = SMP__WEIGHT_FITS; weight >= SMP__WEIGHT_AT_ONCE; weight--)
            for (int first = 0; first < 2; first++)
                for (int deep = 0; deep < (f->list.chunks > 1 ? 2 : 1); deep++) {
                    bool done;
                    smp__list_policy policy = {(smp__list_weight)weight, ahead[a], first,
                                               f->list.chunks > 1 && deep == 0};
                    if (f->n_best > 0 && !goes_on(f))
                        return SMP_OK;
                    SMP_TRY(smp__list_build(&f->list, &policy, f->trial, &done));
                    f->left -= BUILD_COST * (double)f->actions;
                    if (done)
                        offer(f);
                }
    return SMP_OK;
}

/* The best one gets most of what is left. */
static smp_status improve(finder *f)
{
    for (int i = f->n_best - 1; i >= 0; i--) {
        double share = i > 0 ? f->left / (2 * N_BEST) : f->left;
        double evaluations = share / (double)f->actions;
        int64_t budget = evaluations > 0.0 ? (int64_t)evaluations : 0;
        f->left -= share;
        SMP_TRY(smp__list_improve(&f->list, f->best[i], budget, &f->best_us[i]));
        if (f->best_us[i] < f->best_us[0]) {
            smp__word *word = f->best[i];
            f->best[i] = f->best[0];
            f->best[0] = word;
            double us = f->best_us[i];
            f->best_us[i] = f->best_us[0];
            f->best_us[0] = us;
        }
    }
    return SMP_OK;
}

static smp_status write_order(const smp__list *l, int rank, const smp__word *word, smp_program *out)
{
    for (int c = 0; c < l->chunks; c++)
        l->count[(int64_t)rank * l->chunks + c] = (smp__list_count){0};
    for (int i = 0; i < word->n; i++) {
        smp_action_kind kind = smp__letter_kind(word->letter[i]);
        int chunk = smp__letter_chunk(word->letter[i]), mb;
        smp__list_count *count = &l->count[(int64_t)rank * l->chunks + chunk];
        if (kind == SMP_ACTION_F)
            mb = count->forward++;
        else if (kind == SMP_ACTION_W)
            mb = count->weight++;
        else
            mb = count->input++;
        count->weight += kind == SMP_ACTION_B;
        SMP_TRY(smp_program_push(out, kind, mb, chunk));
    }
    return SMP_OK;
}

static smp_status find(finder *f, const smp_program *starts, int n_start, smp_list_result *result)
{
    const smp_list_input *input = f->list.input;
    SMP_TRY(check_limits(&f->list));
    SMP_TRY(smp__words_create(&f->list, &f->trial));
    for (int i = 0; i < N_BEST; i++)
        SMP_TRY(smp__words_create(&f->list, &f->best[i]));
    SMP_TRY(smp__list_bound(&f->list, &result->lower_bound_us));
    f->actions = (int64_t)f->list.n_rank * f->list.longest;
    f->left = input->effort > 0.0 ? input->effort : 3e7;
    offer_starts(f, starts, n_start);
    result->start_us = f->n_best > 0 ? f->best_us[0] : -1.0;
    SMP_TRY(offer_built(f));
    if (f->n_best == 0)
        return smp_fail(SMP_ERR_NO_FIT, "schedule auto: no order stays within the memory limit");
    SMP_TRY(improve(f));
    int64_t merges = (int64_t)(1e7 / (double)f->actions);
    SMP_TRY(smp__list_merge(&f->list, f->best[0], merges, &f->best_us[0]));
    result->step_us = f->best_us[0];
    return SMP_OK;
}

smp_status smp_list_schedule(const smp_list_input *input, const smp_program *starts, int n_start,
                             smp_program *orders, smp_list_result *result)
{
    SMP_TRY(check_input(input));
    finder f = {.n_best = 0};
    smp_list_result found = {0};
    smp_status status = smp__list_open(input, &f.list);
    if (status == SMP_OK)
        status = find(&f, starts, n_start, &found);
    for (int rank = 0; rank < input->pipeline; rank++)
        orders[rank] = (smp_program){0};
    for (int rank = 0; status == SMP_OK && rank < input->pipeline; rank++)
        status = write_order(&f.list, rank, &f.best[0][rank], &orders[rank]);
    smp__list_close(&f.list);
    if (status == SMP_OK)
        *result = found;
    else
        for (int rank = 0; rank < input->pipeline; rank++)
            smp_program_free(&orders[rank]);
    return status;
}
