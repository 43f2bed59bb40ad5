/* compare and --sweep; see the header. */
#include "tools/partition/several.h"

#include <stdio.h>
#include <string.h>

#include "exec/start/planning.h"
#include "tools/partition/comparison.h"
#include "tools/partition/outputs.h"

enum { MOST_KEYS = 8, MOST_VALUES = 64 };

static smp_status write_file(const char *path, const smp_comparison *comparison,
                             smp_status (*put)(const smp_comparison *, smp_text *))
{
    smp_text text = {0};
    if (!path)
        return SMP_OK;
    smp_status status = put(comparison, &text);
    if (status == SMP_OK)
        status = smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    return status;
}

/* Files first, so that what is printed is true. */
static smp_status write_comparison(const smp_partition_options *o, smp_comparison *comparison)
{
    smp_text text = {0};
    comparison->tokens = o->tokens;
    comparison->price = o->price;
    SMP_TRY(write_file(o->csv, comparison, smp_comparison_csv));
    SMP_TRY(write_file(o->svg, comparison, smp_comparison_svg));
    smp_status status = smp_comparison_table(comparison, &text);
    if (status == SMP_OK)
        status = smp_print_text(&text);
    smp_text_free(&text);
    return status;
}

static smp_status add_file(const char *path, smp_comparison *comparison)
{
    smp_plan *plan = NULL;
    smp_graph *graph = NULL;
    SMP_TRY(smp_plan_read(path, &plan));
    smp_status status = plan->model_path
                            ? smp_plan_open_model(plan, path, 0, &graph)
                            : smp_fail(SMP_ERR_INPUT, "%s: the plan names no model", path);
    if (status == SMP_OK)
        status = smp_comparison_add(comparison, path, plan, graph);
    smp_graph_destroy(graph);
    smp_plan_destroy(plan);
    return smp_fail_context(status, path);
}

smp_status smp_compare_plans(const smp_partition_options *options)
{
    smp_comparison comparison = {0};
    smp_status status = add_file(options->plan, &comparison);
    for (int i = 0; status == SMP_OK && i < options->common.n_more; i++)
        status = add_file(options->common.more[i], &comparison);
    if (status == SMP_OK)
        status = write_comparison(options, &comparison);
    smp_comparison_free(&comparison);
    return status;
}

/* KEY=V,V,... of an option, or of an entry of the model's `let`. */
typedef struct axis {
    char *key, *value[MOST_VALUES];
    bool of_model; /* then value: "KEY=V" */
    int n;
} axis;

/* The model has such an entry, which may be so much. */
static smp_status check_setting(const smp_partition_options *o, const axis *axis)
{
    const char *setting = axis->value[0];
    smp_graph *graph = NULL;
    smp_status status = smp_graph_read_with(o->job.model, (smp_settings){1, &setting}, &graph);
    smp_graph_destroy(graph);
    return smp_fail_context(status, "--sweep: no option of the search, and not of the model");
}

static smp_status read_axis(const char *text, smp_arena *arena, axis *out)
{
    char *copy = smp_arena_strdup(arena, text), *equals = copy ? strchr(copy, '=') : NULL;
    *out = (axis){.key = copy};
    if (!copy)
        return SMP_ERR_NO_MEMORY;
    if (!equals || equals == copy || !equals[1])
        return smp_fail(SMP_ERR_INPUT, "--sweep: got '%s', expected KEY=V,V,...", text);
    *equals = '\0';
    for (char *rest = equals + 1, *value; (value = strsep(&rest, ","));) {
        if (out->n == MOST_VALUES)
            return smp_fail(SMP_ERR_INPUT, "--sweep: %s: more than %d values", out->key,
                            MOST_VALUES);
        if (!*value)
            return smp_fail(SMP_ERR_INPUT, "--sweep: %s: an empty value", out->key);
        out->value[out->n++] = value;
    }
    out->of_model = !smp_partition_options_know(out->key);
    for (int i = 0; i < out->n && out->of_model; i++) {
        smp_text setting = {0};
        smp_text_append(&setting, "%s=%s", out->key, out->value[i]);
        out->value[i] = setting.failed ? NULL : smp_arena_strdup(arena, setting.data);
        smp_text_free(&setting);
        if (!out->value[i])
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

/* The options of one combination, the last key turning fastest, and its name. */
static smp_status combine(const smp_partition_options *options, const axis *axes, int n, int which,
                          smp_partition_options *out, smp_text *name)
{
    int at[MOST_KEYS];
    *out = *options;
    for (int i = n - 1; i >= 0; i--) {
        at[i] = which % axes[i].n;
        which /= axes[i].n;
    }
    for (int i = 0; i < n; i++) {
        const char *value = axes[i].value[at[i]];
        const char *key = axes[i].of_model ? "" : axes[i].key;
        SMP_TRY(axes[i].of_model ? smp_partition_options_let(out, value)
                                 : smp_partition_options_set(out, key, value));
        smp_text_append(name, "%s%s%s%s", i ? " " : "", key, *key ? "=" : "", value);
    }
    return name->failed ? SMP_ERR_NO_MEMORY : SMP_OK;
}

static smp_status plan_one(const smp_partition_options *o, const char *name,
                           smp_comparison *comparison)
{
    smp__planning planning;
    smp_status status = smp__planning_open(&o->job, NULL, 0, &planning);
    if (status == SMP_OK)
        status = smp__planning_run(&planning, o->job.model);
    if (status == SMP_OK)
        status = smp_comparison_add(comparison, name, planning.made.result.plan,
                                    planning.made.request.graph);
    else if (status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT)
        status = smp_comparison_miss(comparison, name, smp_last_error());
    smp__planning_close(&planning);
    return status;
}

static smp_status plan_all(const smp_partition_options *options, const axis *axes, int n,
                           smp_comparison *comparison)
{
    int64_t all = 1;
    for (int i = 0; i < n; i++)
        all *= axes[i].n;
    if (all > SMP_MAX_COMPARED)
        return smp_fail(SMP_ERR_INPUT, "--sweep: %lld combinations, expected at most %d",
                        (long long)all, SMP_MAX_COMPARED);
    for (int i = 0; i < (int)all; i++) {
        smp_partition_options one;
        smp_text name = {0};
        smp_status status = combine(options, axes, n, i, &one, &name);
        if (status == SMP_OK)
            status = plan_one(&one, name.data, comparison);
        smp_text_free(&name);
        SMP_TRY(status);
    }
    return SMP_OK;
}

static smp_status sweep(const smp_partition_options *options, smp_arena *arena,
                        smp_comparison *comparison)
{
    axis axes[MOST_KEYS];
    const int n = options->sweep.n;
    if (n > MOST_KEYS)
        return smp_fail(SMP_ERR_INPUT, "--sweep: more than %d", MOST_KEYS);
    for (int i = 0; i < n; i++)
        SMP_TRY(read_axis(options->sweep.item[i], arena, &axes[i]));
    for (int i = 0; i < n; i++)
        if (axes[i].of_model)
            SMP_TRY(check_setting(options, &axes[i]));
    SMP_TRY(plan_all(options, axes, n, comparison));
    SMP_TRY(write_comparison(options, comparison));
    for (int i = 0; i < comparison->n; i++)
        if (comparison->row[i].made)
            return SMP_OK;
    return smp_fail(SMP_ERR_NO_FIT, "--sweep: no combination has a plan");
}

smp_status smp_sweep_plans(const smp_partition_options *options)
{
    smp_comparison comparison = {0};
    smp_arena *arena = smp_arena_create();
    const smp_status status = arena ? sweep(options, arena, &comparison) : SMP_ERR_NO_MEMORY;
    smp_comparison_free(&comparison);
    smp_arena_destroy(arena);
    return status;
}
