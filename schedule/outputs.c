/* Files made of a plan; see the header. */
#include "schedule/outputs.h"

#include "schedule/show/picture.h"
#include "schedule/show/trace.h"

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
        status = smp_trace_save(plan, graph, NULL, 0, options->trace);
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
