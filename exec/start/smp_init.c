/* What smp.h has with the planner: the start of a job, and plans without one. */
#include <stdlib.h>
#include <string.h>

#include "exec/job/job.h"
#include "exec/start/planning.h"
#include "graph/ops/custom_op.h"
#include "schedule/plan/relative_path.h"

static smp_status check_size(const smp_options *options)
{
    if (options->size == sizeof *options)
        return SMP_OK;
    return smp_fail(
        SMP_ERR_INPUT,
        "options of %zu bytes, expected %zu: begin with smp_options_default(), with the "
        "smp.h of this library",
        options->size, sizeof *options);
}

static smp_status make_plan(const smp_options *options, const smp_target *target, int ranks,
                            const char *model_path, smp_plan **out)
{
    smp__planning planning;
    smp_status status = smp__planning_open(options, target, ranks, &planning);
    if (status == SMP_OK)
        status = smp__planning_run(&planning, model_path);
    if (status == SMP_OK) {
        *out = planning.made.result.plan;
        planning.made.result.plan = NULL;
    }
    smp__planning_close(&planning);
    return status;
}

smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_target target,
                                  smp_plan **out)
{
    return make_plan(options, &target, ranks, options->model, out);
}

/* "auto": what is in this machine. */
static const char *device_here(const char *name)
{
    for (int i = 0; name && strcmp(name, "auto") == 0 && smp_devices()[i]; i++)
        if (smp_devices()[i]->present() == SMP_OK)
            return smp_devices()[i]->name;
    return name;
}

smp_status smp_plan_write(const smp_options *options, const char *path)
{
    smp_plan *plan = NULL;
    smp_text text = {0};
    char *model = NULL;
    if (!options || !options->model || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_plan_write needs options.model and a path");
    SMP_TRY(check_size(options));
    smp_options own = *options;
    own.runtime.device = device_here(options->runtime.device);
    SMP_TRY(smp_plugins_load(options->runtime.plugins, options->runtime.n_plugins));
    smp_status status = smp_relative_path(path, options->model, &model);
    if (status == SMP_OK)
        status = make_plan(&own, NULL, 0, model ? model : options->model, &plan);
    if (status == SMP_OK)
        status = smp_plan_format(plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    smp_plan_destroy(plan);
    free(model);
    return status;
}

smp_status smp_init(smp **out, const smp_options *options)
{
    if (!out || !options)
        return smp_fail(SMP_ERR_INPUT, "smp_init: a NULL argument");
    SMP_TRY(check_size(options));
    return smp__job_open(out, options, smp__plan_from_options);
}
