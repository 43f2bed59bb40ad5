/* Links: half a round trip between two ranks over the transport that a job would take, the receive
 * posted ahead as in training. One pair of ranks stands for the links inside nodes, one for those
 * between nodes; a node is what shares memory (MPI_Comm_split_type). */
#include "exec/probe/probe_link.h"

#include <stdio.h>
#include <stdlib.h>

void smp__probe_pairs(const int *node_of, int ranks, smp__probe_pair *pair)
{
    smp__probe_pair *intra = &pair[SMP_LINK_INTRA_NODE], *inter = &pair[SMP_LINK_INTER_NODE];
    *intra = *inter = (smp__probe_pair){-1, -1};
    for (int rank = 1; rank < ranks; rank++) {
        if (intra->first < 0 && node_of[rank] != rank)
            *intra = (smp__probe_pair){node_of[rank], rank};
        if (inter->first < 0 && node_of[rank] != 0)
            *inter = (smp__probe_pair){0, rank};
    }
}

/* Lanes have the number of their link and their direction. */
static int list_lanes(smp__probe_links *links, int rank, smp_lane *lane)
{
    int n = 0;
    for (int kind = 0; kind < SMP__RANK_LINKS; kind++) {
        const smp__probe_pair *pair = &links->pair[kind];
        links->lane[kind] = n;
        if (rank != pair->first && rank != pair->second)
            continue;
        const bool first = rank == pair->first;
        for (int back = 0; back < 2; back++)
            lane[n++] = (smp_lane){.id = 2 * kind + back,
                                   .peer = first ? pair->second : pair->first,
                                   .outgoing = first == (back == 0),
                                   .messages = 1,
                                   .max_bytes = INT32_MAX};
    }
    return n;
}

static smp_status open_transport(smp__probe_state *p, smp__probe_links *links)
{
    smp_lane lane[2 * SMP__RANK_LINKS];
    const int n = list_lanes(links, p->comm.world_rank, lane);
    const smp_transport_options options = {.comm = &p->comm,
                                           .device = p->device,
                                           .device_context = p->device_context,
                                           .reductions = 1,
                                           .n_lane = n,
                                           .lane = lane};
    links->transport = smp_transport_choose(&options, NULL, 0);
    smp_status status =
        links->transport
            ? SMP_OK
            : smp_fail(SMP_ERR_FAILED, "no transport serves the device '%s'", p->device->name);
    SMP_TRY(smp__comm_agree(&p->comm, status));
    return links->transport->open(&options, &links->context);
}

smp_status smp__probe_links_open(smp__probe_state *p, smp__probe_links *links)
{
    int *node_of;
    *links = (smp__probe_links){.pair = {{-1, -1}, {-1, -1}}};
    if (p->comm.world_size == 1)
        return SMP_OK;
    SMP_TRY(smp__comm_nodes(&p->comm, &node_of));
    smp__probe_pairs(node_of, p->comm.world_size, links->pair);
    free(node_of);
    SMP_TRY(smp__comm_agree(
        &p->comm, smp__comm_split(&p->comm, (smp_comm_place){.pipeline_rank = p->comm.world_rank,
                                                             .shard = 1,
                                                             .tensor = 1})));
    return smp__comm_agree(&p->comm, open_transport(p, links));
}

void smp__probe_links_close(smp__probe_links *links)
{
    if (links->context)
        links->transport->close(links->context);
}

static void describe_link(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the other end of the link");
}

/* A link in use. */
typedef struct end {
    smp__probe_state *state;
    smp__probe_links *links;
    int lane, tag; /* of the way there; those of the way back follow */
    bool first;
    char *out, *in;
    int64_t bytes;
} end;

typedef struct link_wait {
    const smp__probe_links *links;
    smp_request *request;
} link_wait;

static smp_status test_link(void *context, bool *done)
{
    const link_wait *wait = context;
    return wait->links->transport->test(wait->links->context, wait->request, done);
}

static smp_status finish(const end *e, smp_request *request)
{
    link_wait wait = {e->links, request};
    return smp__comm_wait_until(&e->state->comm, &(smp_wait){0}, test_link, describe_link, &wait);
}

static smp_status round_trip(const end *e)
{
    const smp_transport *transport = e->links->transport;
    const int in = e->first ? 1 : 0, out = 1 - in;
    smp_request receive = {0}, send = {0};
    SMP_TRY(transport->receive(e->links->context, e->lane + in, e->tag + in, e->in, e->bytes,
                               &receive));
    if (!e->first)
        SMP_TRY(finish(e, &receive));
    SMP_TRY(
        transport->send(e->links->context, e->lane + out, e->tag + out, e->out, e->bytes, &send));
    SMP_TRY(finish(e, &send));
    return e->first ? finish(e, &receive) : SMP_OK;
}

static smp_status round_trips(const end *e, int repeat)
{
    for (int i = 0; i < repeat; i++)
        SMP_TRY(round_trip(e));
    return smp__probe_idle(e->state);
}

static smp_status open_end(end *e)
{
    int64_t out = 0, in = 0, total = 0;
    if (e->bytes > e->links->transport->max_message_bytes ||
        !smp__probe_place(&total, e->bytes, &out) || !smp__probe_place(&total, e->bytes, &in))
        return smp_fail(SMP_ERR_INPUT, "link: %lld bytes", (long long)e->bytes);
    SMP_TRY(smp__probe_pool(e->state, total));
    e->out = e->state->pool + out;
    e->in = e->state->pool + in;
    return SMP_OK;
}

smp_status smp__probe_links_time(smp__probe_state *p, smp__probe_links *links, smp_link_kind kind,
                                 int64_t bytes, int repeat, double *us, double *spent_us)
{
    const smp__probe_pair *pair = &links->pair[kind];
    const int rank = p->comm.world_rank;
    const bool takes_part = rank == pair->first || rank == pair->second;
    const double entered_s = smp_clock_s();
    end e = {.state = p,
             .links = links,
             .lane = links->lane[kind],
             .tag = 2 * (int)kind,
             .first = rank == pair->first,
             .bytes = bytes};
    SMP_TRY(smp__comm_agree(&p->comm, takes_part ? open_end(&e) : SMP_OK));
    smp_status status = takes_part ? round_trips(&e, 1) : SMP_OK; /* warm-up */
    const double begin_s = smp_clock_s();
    if (takes_part && status == SMP_OK)
        status = round_trips(&e, repeat);
    const double end_s = smp_clock_s();
    SMP_TRY(smp__comm_agree(&p->comm, status));
    /* 0 on all ranks but the first: the sum is its time. */
    links->took[0] = e.first ? 1e6 * (end_s - begin_s) / repeat / 2 : 0;
    links->took[1] = e.first ? 1e6 * (end_s - entered_s) : 0;
    SMP_TRY(smp__comm_sum(&p->comm, links->took, 2));
    *us = links->took[0];
    *spent_us = links->took[1];
    return SMP_OK;
}
