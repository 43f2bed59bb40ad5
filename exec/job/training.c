/* What smp-run asks of a job; see the header. */
#include "exec/job/training.h"

#include <stdlib.h>
#include <string.h>

#include "exec/inputs/loss_share.h"
#include "exec/job/choose_device.h"
#include "exec/job/setup.h"
#include "exec/state/weights.h"
#include "exec/step/captures.h"

smp_status smp__job_data_open(smp *s, const smp_data_options *options, smp_data **out)
{
    return smp__comm_agree(s->comm, smp_data_open(s->graph, options, out));
}

static void put_note(smp_text *text, const char *note)
{
    if (note[0] != '\0')
        smp_text_append(text, " [%s]", note);
}

static void put_products(const smp *s, smp_text *text)
{
    char chosen[640] = "";
    if (s->device->products)
        smp_gemms_describe(s->device->products(s->device_context), chosen, sizeof chosen);
    if (chosen[0] == '\0')
        return;
    smp_text_append(text, "\n%s", chosen);
    put_note(text, s->setup->found->products_note);
}

void smp__job_target_text(const smp *s, smp_text *text)
{
    if (s->device == smp_device_find("cpu") && s->setup->found->device_note[0] == '\0')
        return;
    smp_text_append(text, "device %s (%s), %s", s->device->name,
                    s->device->describe(s->device_context),
                    smp_precision_name(s->target->precision));
    put_note(text, s->setup->found->device_note);
    smp__captures_describe(s, text);
    if (s->comm->world_size > 1) {
        smp_text_append(text, ", transport %s", s->endpoint->transport->name);
        put_note(text, s->setup->found->transport_note);
    }
    put_products(s, text);
}

int64_t smp__job_graphs(const smp *s, int64_t *launches)
{
    return smp__captures_count(s, launches);
}

void smp__job_place_of(const smp *s, int rank, int *replica, int *pipeline_rank)
{
    int index;
    smp_plan_place(s->plan, rank, replica, pipeline_rank, &index);
}

int smp__job_first_process(const smp *s, int replica)
{
    return smp_plan_first_process(s->plan, replica, 0);
}

bool smp__job_has_cluster(const smp *s)
{
    return s->plan->cluster != NULL;
}

smp_status smp__drift_measure(smp *s, const float *kept, double *off)
{
    double own = 0.0;
    SMP_TRY(smp__comm_agree(s->comm, smp__drift_distance(s, kept, &own)));
    memset(off, 0, (size_t)s->comm->ddp_size * sizeof *off);
    off[s->comm->replica] = own;
    return smp__comm_sum(s->comm, off, s->comm->ddp_size);
}

bool smp__job_failed(const smp *s)
{
    return s->comm->failed;
}

void smp__job_explain(const smp *s, smp_status status)
{
    if (!s->comm->told && smp__place_words(s->place))
        smp__job_context(s, status);
}

static int64_t classes_of(const smp *s, const smp_op *loss)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    int64_t min, max;
    if (!loss || !loss->kind->counts_hits)
        return 0;
    const smp_op *op = &whole->op[whole->tensor[whole->loss].producer];
    return op->kind->index_range(whole, op, op->kind->rows_in, &min, &max) ? max + 1 : 0;
}

void smp_job_describe(const smp *s, smp_job_description *out)
{
    const smp_op *loss = smp__counting_loss(s);
    *out = (smp_job_description){.model = s->plan->model_path,
                                 .trains = s->graph->training,
                                 .has_loss = s->graph->loss >= 0,
                                 .has_perplexity = loss && loss->kind->counts_hits,
                                 .classes = classes_of(s, loss),
                                 .global_batch = smp__job_global_batch(s),
                                 .scales_loss = smp__job_scales_loss(s)};
    for (int i = 0; i < s->graph->n_input && out->tokens == 0; i++) {
        const smp_tensor *input = &s->graph->tensor[i];
        if (input->dtype == SMP_I32 && input->shape.n_dim == 1)
            out->tokens = input->shape.dim[0];
    }
}

void smp_plan_prediction(const smp *s, smp_prediction *out)
{
    const smp_predicted *p = &s->plan->predicted;
    *out =
        (smp_prediction){.step_us = p->step_us + p->waits_us,
                         .bottleneck_us = p->bottleneck_us,
                         .lower_bound_us = p->lower_bound_us,
                         .gap = p->gap,
                         .bubble = p->bubble,
                         .samples_per_s = p->samples_per_s,
                         .peak_bytes = p->peak_bytes ? p->peak_bytes[s->comm->pipeline_rank] : 0};
}

int64_t smp_steps_done(const smp *s)
{
    return s->step;
}

smp_status smp_agree(smp *s, smp_status status)
{
    if (!s)
        return smp_fail(SMP_ERR_INPUT, "smp_agree: a NULL argument");
    return smp__comm_agree(s->comm, status);
}
