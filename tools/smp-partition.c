/* smp-partition: plans a model, or judges a plan. Wiring and exit code; the options stand in
 * tools/partition/partition_options.c. */
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/start/planning.h"
#include "graph/base/clock.h"
#include "graph/ops/custom_op.h"
#include "schedule/check/check.h"
#include "schedule/check/same_bits.h"
#include "schedule/foreign/foreign_judge.h"
#include "schedule/planner/advice/doubts.h"
#include "tools/partition/outputs.h"
#include "tools/partition/several.h"
#include "schedule/plan/relative_path.h"
#include "tools/show/check_report.h"
#include "tools/show/explain.h"
#include "tools/show/picture.h"
#include "tools/show/stage_table.h"

/* The plan's file, with the model as seen from there. */
static smp_status write_plan(const smp_partition_options *o, smp_plan *plan, const char *model)
{
    smp_text text = {0};
    char *path = NULL;
    if (!o->output)
        return SMP_OK;
    SMP_TRY(smp_relative_path(o->output, model, &path));
    const char *kept = plan->model_path;
    plan->model_path = path ? path : model;
    smp_status status = smp_plan_format(plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(o->output, text.data, text.length);
    plan->model_path = kept;
    smp_text_free(&text);
    free(path);
    return status;
}

static smp_status show(const smp_partition_options *o, const smp_text *shown,
                       const smp_text *reasons)
{
    SMP_TRY(smp_print_text(shown));
    if (o->explain && !o->json)
        fputc('\n', stdout);
    return smp_print_text(reasons);
}

static smp_status put_reasons(const smp_tensor_result *made, smp_text *reasons)
{
    SMP_TRY(smp_explain_tensor(made, reasons));
    SMP_TRY(smp_explain_plan(&made->result, reasons));
    SMP_TRY(smp_explain_hints(&made->request, &made->result, reasons));
    return smp_plan_draw_text(made->result.plan, made->request.graph, 0, reasons);
}

/* Files first, so that what is printed is true. A file that cannot be made, such as an export in
 * which this plan cannot be said, takes nothing else away: the plan is written and shown, then the
 * program fails. */
static smp_status write_results(const smp_partition_options *o, smp_tensor_result *made)
{
    const smp_planner_result *result = &made->result;
    const smp_graph *graph = made->request.graph;
    smp_text shown = {0}, reasons = {0}, untold = {0};
    smp_status status = SMP_OK;
    if (o->json)
        status = smp_plan_format_json(result->plan, &shown);
    else
        status = smp_stage_table(result->plan, result->search.best->partition, graph, &shown);
    if (status == SMP_OK && !o->json && o->tokens > 0)
        status = smp_put_training(result->plan, graph, o->tokens, o->price, &shown);
    if (status == SMP_OK && o->keep_every > 0)
        status = smp_put_keeping(result->plan, graph, o->keep_every, o->json ? &untold : &shown);
    if (status == SMP_OK && o->explain)
        status = o->json ? smp_explain_json(made, &shown) : put_reasons(made, &reasons);
    if (status == SMP_OK)
        status = write_plan(o, result->plan, o->job.model);
    if (status == SMP_OK) {
        const smp_status made_files = smp_write_outputs(o, result->plan, graph);
        status = show(o, &shown, &reasons);
        status = made_files != SMP_OK ? made_files : status;
    }
    smp_text_free(&shown);
    smp_text_free(&reasons);
    smp_text_free(&untold);
    return status;
}

/* What nobody wants of a plan is said wherever it is shown. */
static smp_status warn(const smp_tensor_result *made)
{
    smp_text doubts = {0};
    const smp_status status = smp_planner_doubts(&made->request, &made->result, &doubts);
    for (char *rest = doubts.data, *line; status == SMP_OK && rest && (line = strsep(&rest, "\n"));)
        if (*line)
            fprintf(stderr, "smp-partition: %s\n", line);
    smp_text_free(&doubts);
    return status;
}

static smp_status run_plan(const smp_partition_options *o)
{
    smp__planning planning;
    smp_tensor_result *made = &planning.made;
    char *path = NULL;
    SMP_TRY(o->output ? smp_relative_path(o->output, o->job.model, &path) : SMP_OK);
    smp_status status = smp__planning_open(&o->job, NULL, 0, &planning);
    if (status == SMP_OK)
        status = smp__planning_run(&planning, path ? path : o->job.model);
    if (status == SMP_OK && made->result.search.timed_out)
        fprintf(stderr, "smp-partition: the %s is spent: this is the best plan until then\n",
                smp_work_is_late() ? "time limit" : "effort");
    if (status == SMP_OK && made->largest_left_out > 0)
        fprintf(stderr,
                "smp-partition: tensor groups of up to %d devices were not looked at for want of "
                "effort: --tensor %d does, --effort high may\n",
                made->largest_left_out, made->largest_left_out);
    if (status == SMP_OK && smp_plan_tensor(made->result.plan) > 1 &&
        made->result.plan->splitting.n_entry == 0)
        fprintf(stderr, "smp-partition: no op is split: every device of a group computes all\n");
    if (status == SMP_OK)
        status = write_results(o, made);
    if (status == SMP_OK)
        status = warn(made);
    smp__planning_close(&planning);
    free(path);
    return status;
}

static smp_status write_check(const smp_partition_options *o, const smp_check *check,
                              const smp_search_request *request)
{
    smp_text shown = {0}, reasons = {0}, untold = {0};
    smp_status status;
    if (o->json)
        status = smp_check_report_json(check, request, &shown);
    else
        status = smp_check_report(check, request, &shown);
    if (status == SMP_OK && o->keep_every > 0 && check->plan)
        status =
            smp_put_keeping(check->plan, request->graph, o->keep_every, o->json ? &untold : &shown);
    if (status == SMP_OK && o->explain && check->plan && o->json) {
        status = smp_explain_checked_json(check->plan, check->partition, request->graph, &shown);
    } else if (status == SMP_OK && o->explain && check->plan) {
        smp_explain_splitting(check->plan, &reasons);
        smp_explain_bottleneck(check->plan, check->partition, &reasons);
        status = smp_plan_draw_text(check->plan, request->graph, 0, &reasons);
    }
    if (status == SMP_OK && check->plan)
        status = smp_write_outputs(o, check->plan, request->graph);
    if (status == SMP_OK && check->plan)
        status = write_plan(o, check->plan, request->graph->path);
    if (status == SMP_OK)
        status = show(o, &shown, &reasons);
    smp_text_free(&shown);
    smp_text_free(&reasons);
    smp_text_free(&untold);
    return status;
}

static smp_status run_check(const smp_partition_options *o)
{
    smp__planning planning;
    smp_check check = {0};
    smp_search_request *request = &planning.request;
    smp_status status = smp__planning_open_checked(&o->job, o->plan, &planning);
    if (status == SMP_OK)
        status = smp_check_sketch(request, request->placement != SMP_PLACEMENT_AUTO,
                                  planning.sketch, &check);
    if (status == SMP_OK)
        status = write_check(o, &check, request);
    if (status == SMP_OK && !check.legal)
        status = smp_fail(SMP_ERR_INPUT, "%s: the plan is illegal: %d finding%s", o->plan,
                          check.findings.n_level[SMP_FINDING_ILLEGAL],
                          check.findings.n_level[SMP_FINDING_ILLEGAL] == 1 ? "" : "s");
    else if (status == SMP_OK && !check.fits)
        status =
            smp_fail(SMP_ERR_NO_FIT, "%s: the plan is legal, but does not fit the memory", o->plan);
    smp_check_free(&check);
    smp__planning_close(&planning);
    return status;
}

static smp_status write_verdict(const smp_partition_options *o, const smp_foreign_verdict *verdict)
{
    smp_text shown = {0};
    smp_status status =
        o->json ? smp_foreign_report_json(verdict, &shown) : smp_foreign_report(verdict, &shown);
    if (status == SMP_OK)
        status = smp_print_text(&shown);
    smp_text_free(&shown);
    if (status == SMP_OK && !verdict->legal)
        status =
            smp_fail(SMP_ERR_INPUT, "%s: %s", o->plan,
                     verdict->complete ? "the schedule deadlocks" : "the schedule is not complete");
    return status;
}

/* A schedule of another framework. */
static smp_status judge_foreign(const smp_partition_options *o)
{
    smp_foreign *foreign = NULL;
    smp_plan *costs = NULL;
    smp_foreign_verdict verdict = {0};
    const smp_plan_options *p = &o->job.planning;
    const double deadline_s = smp_effort_begin(p->effort, p->time_limit_s);
    smp_status status = o->costs ? smp_plan_read(o->costs, &costs) : SMP_OK;
    if (status == SMP_OK)
        status = smp_foreign_read(o->plan, p->stages, p->microbatches, &foreign);
    if (status == SMP_OK)
        status = smp_foreign_judge(foreign, costs, deadline_s, &verdict);
    if (status == SMP_OK)
        status = write_verdict(o, &verdict);
    smp_foreign_verdict_free(&verdict);
    smp_foreign_destroy(foreign);
    smp_plan_destroy(costs);
    return status;
}

static smp_status compare_bits(const smp_partition_options *o)
{
    smp_text shown = {0};
    const smp_status status = smp_same_bits_report(o->plan, o->same_bits_as, o->json, &shown);
    const smp_status printed = smp_print_text(&shown);
    smp_text_free(&shown);
    return printed != SMP_OK ? printed : status;
}

static smp_status check(const smp_partition_options *o)
{
    bool foreign;
    if (o->same_bits_as)
        return compare_bits(o);
    SMP_TRY(smp_foreign_is(o->plan, &foreign));
    if (foreign)
        return judge_foreign(o);
    if (o->costs)
        return smp_fail(SMP_ERR_INPUT, "--costs: %s is a plan, which has costs of its own",
                        o->plan);
    return run_check(o);
}

static smp_status run_command(const smp_partition_options *o)
{
    SMP_TRY(smp_plugins_load(o->plugins.item, o->plugins.n));
    return o->check         ? check(o)
           : o->compare     ? smp_compare_plans(o)
           : o->sweep.n > 0 ? smp_sweep_plans(o)
                            : run_plan(o);
}

/* Solvers and layouts of millions of ops take and free the same amounts of memory again and again:
 * what was freed is kept, as fresh pages cost more than the work done in them. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 16 << 20);
#endif
}

int main(int argc, char **argv)
{
    keep_freed_memory();
    smp_partition_options options;
    smp_status status = smp_partition_options_parse(argc, argv, &options);
    if (status == SMP_OK && !smp_options_answer(&smp__partition_table, &options, &status))
        status = run_command(&options);
    const int code = smp_options_end(&smp__partition_table, status);
    smp_partition_options_free(&options);
    return code;
}
