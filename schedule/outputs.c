/* Files made of a plan; see the header. */
#include "schedule/outputs.h"

#include <stdlib.h>

#include "schedule/show/picture.h"
#include "schedule/simulate/simulate.h"
#include "schedule/show/trace.h"

static smp_status write_trace(const smp_plan *plan, const smp_graph *graph, const char *path)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    smp_simulation *simulation = NULL;
    smp_trace_event *events = NULL;
    smp_text json = {0};
    int64_t n = 0;
    smp_status status = smp_plan_bind(plan, graph, &stage_of_op);
    if (status == SMP_OK)
        status = smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    if (status == SMP_OK)
        status = smp_simulate_plan(plan, graph, flow, &simulation);
    if (status == SMP_OK)
        status = smp_trace_predicted(plan, simulation, &events, &n);
    if (status == SMP_OK)
        status = smp_trace_format(plan, events, n, NULL, 0, &json);
    if (status == SMP_OK)
        status = smp_file_write(path, json.data, json.length);
    smp_text_free(&json);
    free(events);
    smp_simulation_destroy(simulation);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

static smp_status write_picture(const smp_picture *picture, const char *path,
                                smp_status (*draw)(const smp_picture *, smp_text *))
{
    smp_text text = {0};
    smp_status status = draw(picture, &text);
    if (status == SMP_OK)
        status = smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    return status;
}

smp_status smp_write_outputs(const smp_partition_options *options, const smp_plan *plan,
                             const smp_graph *graph)
{
    smp_picture *picture = NULL;
    smp_status status = SMP_OK;
    if (options->trace)
        status = write_trace(plan, graph, options->trace);
    if (status == SMP_OK && (options->report || options->svg))
        status = smp_picture_open(plan, graph, &picture);
    if (status == SMP_OK && options->report)
        status = write_picture(picture, options->report, smp_picture_html);
    if (status == SMP_OK && options->svg)
        status = write_picture(picture, options->svg, smp_picture_svg);
    for (int i = 0; i < options->n_export && status == SMP_OK; i++)
        status = smp_export_file(options->exporter[i], plan, graph, options->export_path[i]);
    smp_picture_close(picture);
    return status;
}
