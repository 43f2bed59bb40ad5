/* Lines of output: tools/run/printed_lines.h. Rank 0 alone prints. */
#include "tools/run/printed_lines.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "exec/record/step_record.h"
#include "tools/run/printed_times.h"
#include "tools/run/watch.h"
#include "profile/measure.h"

void smp__print_target(const smp *s, bool json)
{
    smp_text text = {0};
    int64_t launches;
    const int64_t graphs = smp__job_graphs(s, &launches);
    smp__job_target_text(s, &text);
    char *rest = text.data;
    for (char *line; rest && (line = strsep(&rest, "\n"));)
        fprintf(stderr, "smp-run: %s\n", line);
    smp_text_free(&text);
    if (json && graphs > 0)
        printf("{\"graphs\": %" PRId64 ", \"launches\": %" PRId64 "}\n", graphs, launches);
}

/* No line after the bar. */
static void lift_bar(const smp__trainer *t)
{
    if (t->watch)
        smp__bar_lift(&t->watch->bar);
}

/* JSON has no infinities. */
static const char *json_number(char *buffer, size_t size, const char *format, double value)
{
    snprintf(buffer, size, isfinite(value) ? format : "null", value);
    return buffer;
}

void smp__print_step(const smp__trainer *t, const smp_step_result *r)
{
    const bool has_loss = t->about.has_loss;
    char loss[64], norm[64], measured[32], predicted[32], scale[48] = "", unsaved[48] = "";
    lift_bar(t);
    if (t->unsaved >= 0)
        snprintf(unsaved, sizeof(unsaved),
                 t->options->json ? ", \"unsaved\": %" PRId64 : "  not saved: step %" PRId64,
                 t->unsaved);
    if (t->about.scales_loss)
        snprintf(scale, sizeof(scale), t->options->json ? ", \"loss_scale\": %.17g" : "  scale %g",
                 r->loss_scale);
    if (t->options->json) {
        printf("{\"step\": %" PRId64 ", \"loss\": %s, \"step_us\": %.1f, \"predicted_us\": %.1f, "
               "\"samples_per_s\": %.2f, \"lr\": %.6g, \"grad_norm\": %s, \"skipped\": %" PRId64
               "%s%s}\n",
               r->step, json_number(loss, sizeof(loss), "%.9g", has_loss ? r->loss : NAN),
               r->step_us, r->predicted_us, r->samples_per_s, r->lr,
               json_number(norm, sizeof(norm), "%.6g", r->grad_norm), r->skipped, scale, unsaved);
    } else {
        double rate =
            t->about.tokens > 0 ? r->samples_per_s * (double)t->about.tokens : r->samples_per_s;
        snprintf(loss, sizeof(loss), has_loss ? "%.4f" : "none", r->loss);
        printf("step %" PRId64 "  loss %s  %.0f %s/s  %s  predicted %s (x%.2f)", r->step, loss,
               rate, t->about.tokens > 0 ? "tokens" : "samples",
               smp_format_us(measured, sizeof(measured), r->step_us),
               smp_format_us(predicted, sizeof(predicted), r->predicted_us),
               r->predicted_us / r->step_us);
        if (r->skipped > 0)
            printf("  skipped %" PRId64, r->skipped);
        printf("%s%s\n", scale, unsaved);
    }
    fflush(stdout);
}

void smp__print_unsaved(const smp__trainer *t)
{
    lift_bar(t);
    fprintf(stderr, "smp-run: %s; training goes on\n", t->unsaved_why);
}

void smp__print_pace(const smp__trainer *t, int rank, const smp__rank_pace *pace, double usual)
{
    const bool slow = pace->change == SMP__RANK_SLOW;
    const int64_t step = smp_steps_done(t->job);
    int replica = 0, pipeline_rank = 0;
    smp__job_place_of(t->job, rank, &replica, &pipeline_rank);
    lift_bar(t);
    if (t->options->json)
        printf("{\"%s\": %d, \"step\": %" PRId64 ", \"replica\": %d, \"pipeline_rank\": %d, "
               "\"ratio\": %.3f, \"usual_ratio\": %.3f}\n",
               slow ? "slow_rank" : "recovered_rank", rank, step, replica, pipeline_rank,
               pace->mean, usual);
    else
        printf("step %" PRId64 "  rank %d (replica %d, pipeline rank %d) %s: its work takes %.2f "
               "times its prediction, that of most ranks %.2f times\n",
               step, rank, replica, pipeline_rank,
               slow ? "is slow since ten steps" : "has recovered", pace->mean, usual);
    fflush(stdout);
}

void smp__print_evaluation(const smp__trainer *t, int64_t step, const smp__evaluated *e)
{
    const bool perplexed = t->about.has_perplexity, any = e->rows > 0.0;
    const double perplexity = any ? exp(e->loss) : NAN;
    const struct {
        const char *name;
        bool known;
        double value;
    } keys[] = {{"accuracy", e->counted, e->accuracy},
                {"perplexity", perplexed, perplexity},
                {"accuracy_top5", e->counted_top5, e->accuracy_top5}};
    char number[64];
    lift_bar(t);
    if (t->options->json) {
        printf("{\"step\": %" PRId64 ", \"eval_loss\": %s", step,
               json_number(number, sizeof(number), "%.9g", e->loss));
        for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
            if (keys[i].known)
                printf(", \"%s\": %s", keys[i].name,
                       json_number(number, sizeof(number), "%.9g", keys[i].value));
        putchar('}');
    } else {
        printf("step %" PRId64 "  evaluation ", step);
        if (any)
            printf("loss %.4f", e->loss);
        else
            printf("without a target");
        if (e->counted && any)
            printf("  accuracy %.2f %%", 100.0 * e->accuracy);
        if (e->counted_top5 && any)
            printf("  top-5 %.2f %%", 100.0 * e->accuracy_top5);
        if (perplexed && any)
            printf("  perplexity %.6g", perplexity);
    }
    putchar('\n');
    fflush(stdout);
}

static void print_misjudged(const smp__trainer *t)
{
    smp_text ops = {0};
    const char *profile = t->options->profile;
    if (!profile)
        printf("the plan's costs are not this machine's: --profile-out FILE keeps what operators "
               "and messages take, for smp-partition --profile; --log FILE says where time goes\n");
    else if (smp__job_misjudged_ops(t->job, profile, &ops) == SMP_OK && ops.length > 0)
        printf("operators of a micro-batch, taken (estimated): %s\n", ops.data);
    if (profile)
        printf("the plan's costs are not this machine's: plan with --profile %s\n", profile);
    smp_text_free(&ops);
}

void smp__print_summary(const smp__trainer *t)
{
    int64_t skip = smp__cold_steps(t->n_step);
    int64_t n = t->n_step - skip;
    if (n <= 0)
        return;
    double median = smp__median(t->step_us + skip, n), predicted = t->predicted.step_us;
    char measured[32], planned[32];
    printf("median step %s, predicted %s, error %+.1f %% (%" PRId64 " step%s)\n",
           smp_format_us(measured, sizeof(measured), median),
           smp_format_us(planned, sizeof(planned), predicted), 100.0 * (predicted / median - 1.0),
           n, n == 1 ? "" : "s");
    if (fabs(predicted / median - 1.0) > SMP__MISJUDGED)
        print_misjudged(t);
    if (t->n_step > 1)
        printf("waited for data %s per step, %s at most\n",
               smp_format_us(measured, sizeof(measured), t->wait_us / (double)(t->n_step - 1)),
               smp_format_us(planned, sizeof(planned), t->longest_wait_us));
}

smp_status smp__print_checksum(smp__trainer *t)
{
    smp *s = t->job;
    uint64_t own = 0;
    SMP_TRY(smp_weights_hash(s, &own));
    for (int replica = 0; replica < smp_size(s, SMP_DDP); replica++) {
        const int root = smp__job_first_process(s, replica);
        uint64_t hash = own;
        SMP_TRY(smp_broadcast(s, SMP_WORLD, root, &hash, sizeof(hash)));
        if (t->prints)
            printf(t->options->json ? "{\"replica\": %d, \"weights\": \"%016" PRIx64 "\"}\n"
                                    : "replica %d weights %016" PRIx64 "\n",
                   replica, hash);
    }
    return SMP_OK;
}
