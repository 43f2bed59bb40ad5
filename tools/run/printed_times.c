/* A table of causes: a row for each rank, what the plan has for it below. Causes that no rank has
 * are left out. */
#include "tools/run/printed_times.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tools/show/text_table.h"

enum { MOST_ROWS = 16 };
static const double SEEN_US = 0.05;

static bool is_used(const smp_rank_time *rank, int n, int cause)
{
    for (int i = 0; i < n; i++)
        if (rank[i].us[cause] >= SEEN_US)
            return true;
    return false;
}

static bool is_predicted(int cause)
{
    return cause == SMP_TIME_FORWARD || cause == SMP_TIME_BACKWARD || cause == SMP_TIME_OPTIMIZER ||
           cause == SMP_TIME_MESSAGES || cause == SMP_TIME_OFFLOAD || cause == SMP_TIME_SUMS ||
           cause == SMP_TIME_GROUP;
}

static void put_rank(smp__table *table, const smp_rank_time *t, int number, const bool *used)
{
    smp__table_put(table, "%d", number);
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        if (used[i])
            smp__table_put_us(table, t->us[i]);
    if (t->slow_replica >= 0 && t->slow_us > t->peer_us)
        smp__table_put(table, "replica %d", t->slow_replica);
    else if (t->peer >= 0)
        smp__table_put(table, "pipeline rank %d", t->peer);
    else
        smp__table_put(table, "-");
    if (!t->has_predicted)
        return;
    smp__table_put(table, "plan");
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        if (used[i] && is_predicted(i))
            smp__table_put_us(table, t->predicted_us[i]);
        else if (used[i])
            smp__table_put(table, "-");
    smp__table_put(table, "-");
}

/* What a rank took for a cause that the plan predicts: recomputation is part of its BACKWARD, and
 * the end of a step of its MESSAGES. */
static double taken_us(const smp_rank_time *t, int cause)
{
    double us = t->us[cause];
    if (cause == SMP_TIME_BACKWARD)
        us += t->us[SMP_TIME_RECOMPUTE];
    if (cause == SMP_TIME_MESSAGES)
        us += t->us[SMP_TIME_END];
    return us;
}

static double sum_of(const double us[SMP_TIME_N_CAUSES])
{
    double sum = 0.0;
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        sum += us[i];
    return sum;
}

/* A rank waits for what others were misjudged in: work explains a step before messages do. */
static void put_misjudged(const smp_rank_time *rank, int n_rank, smp_text *text)
{
    char step[32], said[32], taken[32], planned[32];
    const double step_us = sum_of(rank[0].us) - rank[0].us[SMP_TIME_DATA];
    const double said_us = sum_of(rank[0].predicted_us);
    int most = 0, cause = SMP_TIME_MESSAGES;
    double most_us = 0.0;
    if (!rank[0].has_predicted || said_us <= 0.0 ||
        fabs(step_us - said_us) <= SMP__MISJUDGED * fmin(step_us, said_us))
        return;
    for (int pass = 0; pass < 2 && most_us < 0.2 * fabs(step_us - said_us); pass++)
        for (int r = 0; r < n_rank; r++)
            for (int i = 0; i < SMP_TIME_N_CAUSES; i++) {
                const double us = taken_us(&rank[r], i) - rank[r].predicted_us[i];
                if (!is_predicted(i) || (pass == 0 && i == SMP_TIME_MESSAGES) ||
                    fabs(us) <= most_us || (us > 0) != (step_us > said_us))
                    continue;
                most = r;
                cause = i;
                most_us = fabs(us);
            }
    smp_text_append(text,
                    "a step takes %s, %.2f times the %s that the plan predicts; most of that: %s "
                    "of rank %d, %s for %s\n",
                    smp_format_us(step, sizeof step, step_us), step_us / said_us,
                    smp_format_us(said, sizeof said, said_us), smp_time_forms[cause].text, most,
                    smp_format_us(taken, sizeof taken, taken_us(&rank[most], cause)),
                    smp_format_us(planned, sizeof planned, rank[most].predicted_us[cause]));
}

static smp_status print_table(const smp_rank_time *rank, int n_rank, int64_t steps)
{
    const char *heads[SMP_TIME_N_CAUSES + 2] = {"rank"};
    bool used[SMP_TIME_N_CAUSES];
    const int shown = n_rank < MOST_ROWS ? n_rank : MOST_ROWS;
    int columns = 1;
    smp__table table;
    smp_text text = {0};
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++)
        if ((used[i] = is_used(rank, n_rank, i)))
            heads[columns++] = smp_time_forms[i].text;
    heads[columns++] = "most from";
    smp_text_append(&text, "time of a step by cause, mean of %" PRId64 " step%s\n", steps,
                    steps == 1 ? "" : "s");
    SMP_TRY(smp__table_open(&table, columns, shown * (rank[0].has_predicted ? 2 : 1), heads));
    for (int i = 0; i < shown; i++)
        put_rank(&table, &rank[i], i, used);
    smp_status status = smp__table_print(&table, &text);
    if (status == SMP_OK && shown < n_rank)
        smp_text_append(&text, "... and %d more ranks (--json has all)\n", n_rank - shown);
    if (status == SMP_OK)
        put_misjudged(rank, n_rank, &text);
    if (status == SMP_OK)
        fputs(text.data, stdout);
    smp_text_free(&text);
    return status;
}

static void print_causes(const double *us, bool predicted)
{
    const char *comma = "";
    for (int i = 0; i < SMP_TIME_N_CAUSES; i++) {
        if (predicted && !is_predicted(i))
            continue;
        printf("%s\"%s\": %.1f", comma, smp_time_forms[i].key, us[i]);
        comma = ", ";
    }
}

static void print_json(const smp_rank_time *rank, int n_rank, int64_t steps)
{
    printf("{\"time\": {\"steps\": %" PRId64 ", \"ranks\": [", steps);
    for (int i = 0; i < n_rank; i++) {
        const smp_rank_time *t = &rank[i];
        printf("%s{\"rank\": %d, \"replica\": %d, \"pipeline_rank\": %d, ", i ? ", " : "", i,
               t->replica, t->pipeline_rank);
        print_causes(t->us, false);
        if (t->peer >= 0)
            printf(", \"peer\": %d, \"peer_us\": %.1f", t->peer, t->peer_us);
        if (t->slow_replica >= 0)
            printf(", \"slow_replica\": %d", t->slow_replica);
        printf(", \"arena_bytes\": %" PRId64 ", \"resident_bytes\": %" PRId64, t->arena_bytes,
               t->resident_bytes);
        if (t->has_predicted) {
            printf(", \"predicted\": {");
            print_causes(t->predicted_us, true);
            printf("}");
        }
        printf("}");
    }
    printf("]}}\n");
}

smp_status smp__print_times(const smp_rank_time *rank, int n_rank, int64_t steps, bool json)
{
    smp_status status = SMP_OK;
    if (json)
        print_json(rank, n_rank, steps);
    else
        status = print_table(rank, n_rank, steps);
    fflush(stdout);
    return status;
}
