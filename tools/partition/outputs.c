/* Files made of a plan; see the header. */
#include "tools/partition/outputs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/life/job_life.h"
#include "tools/show/picture.h"
#include "schedule/trace/trace.h"

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

/* Says on standard error what the file does not. */
static smp_status export_plan(const smp_exporter *exporter, const smp_plan *plan,
                              const smp_graph *graph, const char *path)
{
    smp_text notes = {0};
    SMP_TRY(smp_export_file(exporter, plan, graph, path));
    smp_status status = smp_export_notes(exporter, plan, graph, &notes);
    char *rest = notes.data;
    for (char *line; status == SMP_OK && rest && (line = strtok_r(rest, "\n", &rest));)
        fprintf(stderr, "smp-partition: %s\n", line);
    smp_text_free(&notes);
    return status;
}

/* What of the file is no event is said. */
static smp_status read_life(const char *path, smp__life *life)
{
    SMP_TRY(smp__life_read(path, life));
    if (life->skipped > 0)
        fprintf(stderr, "smp-partition: %s: %lld line%s, the first: %s\n", path,
                (long long)life->skipped, life->skipped == 1 ? " is no event" : "s are no events",
                life->first_skipped);
    return SMP_OK;
}

/* The job's life: as a figure, and as a section for the page. */
static smp_status draw_life(const smp_partition_options *options, smp_text *section)
{
    smp__life life = {0};
    smp_text svg = {0};
    smp_status status = read_life(options->events, &life);
    if (status == SMP_OK) {
        smp__life_html(&life, section);
        smp__life_svg(&life, &svg);
    }
    if (section->failed || svg.failed)
        status = smp_fail_memory(section->length + svg.length);
    if (status == SMP_OK && options->svg)
        status = smp_file_write(options->svg, svg.data, svg.length);
    smp_text_free(&svg);
    smp__life_free(&life);
    return status;
}

smp_status smp_write_outputs(const smp_partition_options *options, const smp_plan *plan,
                             const smp_graph *graph)
{
    smp_picture *picture = NULL;
    smp_text section = {0};
    smp_status status = SMP_OK;
    if (options->events)
        status = draw_life(options, &section);
    if (status == SMP_OK && options->trace)
        status = smp_trace_save(plan, graph, NULL, 0, options->trace);
    if (status == SMP_OK && (options->report || options->svg))
        status = smp_picture_open(plan, graph, &picture);
    if (status == SMP_OK && picture)
        smp_picture_add_section(picture, &section);
    if (status == SMP_OK && options->report)
        status = write_picture(picture, options->report, smp_picture_html);
    if (status == SMP_OK && options->svg && !options->events)
        status = write_picture(picture, options->svg, smp_picture_svg);
    for (int i = 0; i < options->n_export && status == SMP_OK; i++)
        status = export_plan(options->exporter[i], plan, graph, options->export_path[i]);
    smp_picture_close(picture);
    smp_text_free(&section);
    return status;
}

smp_status smp_print_text(const smp_text *text)
{
    if (text->length > 0 &&
        (fwrite(text->data, 1, text->length, stdout) != text->length || fflush(stdout) != 0))
        return smp_fail(SMP_ERR_FAILED, "standard output: %s", strerror(errno));
    return SMP_OK;
}
