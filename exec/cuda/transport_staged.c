/* Staged transport: for devices with their own memory and processes without a common way between
 * them, such as ranks that share a GPU. Messages go through pinned host memory and MPI.
 *
 * A lane has two places of pinned memory. Its messages are cut into pieces, which take the places
 * in turn: while MPI moves one piece, the device copies the other. Both ends cut alike and all
 * pieces of a lane carry its id as tag, so MPI, which keeps the order of equal tags, matches them.
 * Each lane has a stream of its own for its copies: what a message waits for on the device holds up
 * only the lane's later messages, and copies run beside the kernels.
 *
 * Send: the lane's stream waits for the compute stream, copies pieces to the host, and each goes to
 * MPI when its copy is done. The message is done when MPI has its last piece: what MPI then still
 * holds it moves whenever anybody calls it. Receive: pieces are copied to the device as they come,
 * the first after what the compute stream was told before; it is done when the last copy is
 * enqueued, and the compute stream is told to wait for that. */
#include <stdlib.h>

#include "exec/cuda/cuda_event.h"
#include "exec/cuda/staged_reduce.h"

enum { PLACES = 2, PIECE_BYTES = 1 << 20 };

typedef struct message {
    char *data;
    int64_t bytes;
    int64_t begun;    /* bytes whose pieces have been given a place */
    int64_t finished; /* bytes that MPI has, or whose copy to the device is enqueued */
    bool active;      /* from its start until `test` has said done */
    cudaEvent_t ready, done;
} message;

typedef enum piece_state { FREE, COPYING, SENDING, RECEIVING } piece_state;

typedef struct piece {
    piece_state state;
    char *host; /* [piece_bytes] */
    MPI_Request request;
    cudaEvent_t copied;
    message *of;
    int64_t first, bytes;
} piece;

typedef struct lane {
    int tag, peer;
    bool outgoing;
    int64_t piece_bytes, n_message;
    cudaStream_t stream;
    piece place[PLACES];
    int64_t pieces; /* begun: the next takes place[pieces % PLACES] */
    message *ring;  /* [n_message] */
    int64_t opened; /* messages all of whose pieces are begun */
    int64_t posted; /* messages started: the next is ring[posted % n_message] */
} lane;

typedef struct staged_context {
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    cudaStream_t compute;
    smp__staged_reduce *reduce;
    int n_lane;
    lane lane[];
} staged_context;

static smp_status open_lane(staged_context *c, const smp_lane *from, lane *l)
{
    if (from->id > smp__comm_max_tag(c->comm))
        return smp_fail(SMP_ERR_FAILED, "MPI has no tag %lld, which the plan's lanes need",
                        (long long)from->id);
    *l = (lane){.tag = (int)from->id,
                .peer = from->peer,
                .outgoing = from->outgoing,
                .n_message = from->messages > 0 ? from->messages : 1,
                .piece_bytes = from->max_bytes < PIECE_BYTES ? from->max_bytes : PIECE_BYTES};
    if (l->piece_bytes < 1)
        l->piece_bytes = 1;
    l->ring = calloc((size_t)l->n_message, sizeof(*l->ring));
    if (!l->ring)
        return smp_fail_memory((size_t)l->n_message * sizeof(*l->ring));
    for (int64_t i = 0; i < l->n_message; i++) {
        SMP_TRY(smp__make_event(&l->ring[i].ready));
        SMP_TRY(smp__make_event(&l->ring[i].done));
    }
    for (int i = 0; i < PLACES; i++) {
        SMP_TRY(smp__make_event(&l->place[i].copied));
        SMP_TRY(c->device->reserve_host(c->device_context, l->piece_bytes, &l->place[i].host));
    }
    return smp__make_urgent_stream(&l->stream);
}

static void close_lane(staged_context *c, lane *l)
{
    if (l->stream)
        cudaStreamSynchronize(l->stream); /* unwatched: copies that the device alone waits for */
    for (int i = 0; i < PLACES; i++) {
        bool sent = l->place[i].state != SENDING ||
                    smp__comm_finish_request(c->comm, &l->place[i].request,
                                             "another rank to take the last tensors") == SMP_OK;
        if (l->place[i].host && sent) /* else MPI may still read it */
            c->device->release_host(c->device_context, l->place[i].host);
        if (l->place[i].copied)
            cudaEventDestroy(l->place[i].copied);
    }
    for (int64_t i = 0; l->ring && i < l->n_message; i++) {
        if (l->ring[i].ready)
            cudaEventDestroy(l->ring[i].ready);
        if (l->ring[i].done)
            cudaEventDestroy(l->ring[i].done);
    }
    if (l->stream)
        cudaStreamDestroy(l->stream);
    free(l->ring);
}

static void staged_close(void *context)
{
    staged_context *c = context;
    if (!c)
        return;
    for (int i = 0; i < c->n_lane; i++)
        close_lane(c, &c->lane[i]);
    smp__staged_reduce_close(c->reduce);
    free(c);
}

static smp_status staged_open(const smp_transport_options *options, void **context)
{
    size_t bytes = sizeof(staged_context) + (size_t)options->n_lane * sizeof(lane);
    staged_context *c = calloc(1, bytes);
    if (!c)
        return smp_fail_memory(bytes);
    const smp_cuda *cuda = options->device->kernel_context(options->device_context);
    c->comm = options->comm;
    c->device = options->device;
    c->device_context = options->device_context;
    c->compute = cuda->stream;
    MPI_Comm_set_errhandler(c->comm->messages, MPI_ERRORS_RETURN);
    smp_status status = smp__staged_reduce_open(options, c->compute, &c->reduce);
    for (int i = 0; status == SMP_OK && i < options->n_lane; i++) {
        c->n_lane = i + 1;
        status = open_lane(c, &options->lane[i], &c->lane[i]);
    }
    if (status == SMP_OK)
        *context = c;
    else
        staged_close(c);
    return status;
}

static int64_t staged_max_tag(void *context)
{
    (void)context;
    return INT64_MAX; /* lanes keep the order */
}

/* Gives the next piece its place, if there is one and it is free. */
static smp_status begin_piece(staged_context *c, lane *l, bool *begun)
{
    piece *place = &l->place[l->pieces % PLACES];
    *begun = place->state == FREE && l->opened < l->posted;
    if (!*begun)
        return SMP_OK;
    message *m = &l->ring[l->opened % l->n_message];
    int64_t left = m->bytes - m->begun;
    place->of = m;
    place->first = m->begun;
    place->bytes = left < l->piece_bytes ? left : l->piece_bytes;
    m->begun += place->bytes;
    l->pieces++;
    if (m->begun == m->bytes)
        l->opened++;
    if (!l->outgoing) {
        place->state = RECEIVING;
        return smp__comm_check(MPI_Irecv(place->host, (int)place->bytes, MPI_BYTE, l->peer, l->tag,
                                         c->comm->messages, &place->request),
                               "MPI_Irecv");
    }
    if (place->first == 0)
        SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, l->stream, m->ready, 0));
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, place->host, m->data + place->first, (size_t)place->bytes,
                     cudaMemcpyDeviceToHost, l->stream));
    place->state = COPYING;
    return SMP_CUDA(cudaEventRecord, place->copied, l->stream);
}

/* A piece has been received: on to the device. */
static smp_status copy_up(lane *l, piece *place)
{
    message *m = place->of;
    if (m->finished == 0)
        SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, l->stream, m->ready, 0));
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, m->data + place->first, place->host, (size_t)place->bytes,
                     cudaMemcpyHostToDevice, l->stream));
    SMP_TRY(SMP_CUDA(cudaEventRecord, place->copied, l->stream));
    place->state = COPYING;
    m->finished += place->bytes;
    if (m->finished < m->bytes)
        return SMP_OK;
    return SMP_CUDA(cudaEventRecord, m->done, l->stream);
}

/* A piece lies in host memory: on to MPI. */
static smp_status send_off(staged_context *c, lane *l, piece *place)
{
    place->state = SENDING;
    place->of->finished += place->bytes;
    return smp__comm_check(MPI_Isend(place->host, (int)place->bytes, MPI_BYTE, l->peer, l->tag,
                                     c->comm->messages, &place->request),
                           "MPI_Isend");
}

/* Takes a piece one state on, if what it waits for is done. */
static smp_status advance(staged_context *c, lane *l, piece *place, bool *moved)
{
    int flag = 0;
    *moved = false;
    if (place->state == FREE)
        return SMP_OK;
    SMP_TRY(place->state == COPYING
                ? smp__event_passed(place->copied, &flag)
                : smp__comm_check(MPI_Test(&place->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    if (!flag)
        return SMP_OK;
    *moved = true;
    if (place->state == RECEIVING)
        return copy_up(l, place);
    if (place->state == COPYING && l->outgoing)
        return send_off(c, l, place);
    place->state = FREE;
    return SMP_OK;
}

/* Sends go to MPI in the order of the pieces, since nothing but their order tells them apart. So
 * the older piece comes first, and the younger only moves when the older is past the state that it
 * is in. */
static smp_status progress_lane(staged_context *c, lane *l)
{
    for (bool moved = true; moved;) {
        piece *older = &l->place[l->pieces % PLACES],
              *younger = &l->place[(l->pieces + 1) % PLACES];
        bool begun, first, second = false;
        SMP_TRY(advance(c, l, older, &first));
        if (younger->state != older->state)
            SMP_TRY(advance(c, l, younger, &second));
        SMP_TRY(begin_piece(c, l, &begun));
        moved = first || second || begun;
    }
    return SMP_OK;
}

static smp_status staged_progress(void *context)
{
    staged_context *c = context;
    for (int i = 0; i < c->n_lane; i++)
        SMP_TRY(progress_lane(c, &c->lane[i]));
    return smp__staged_reduce_progress(c->reduce);
}

static smp_status start(staged_context *c, int index, char *data, int64_t bytes,
                        smp_request *request)
{
    lane *l = &c->lane[index];
    message *m = &l->ring[l->posted % l->n_message];
    *request = (smp_request){.active = false};
    if (bytes == 0)
        return SMP_OK; /* neither end waits for it */
    if (m->active)
        return smp_fail(SMP_ERR_FAILED, "more messages at once than the lane was opened for: %lld",
                        (long long)l->n_message);
    m->data = data;
    m->bytes = bytes;
    m->begun = m->finished = 0;
    m->active = true;
    SMP_TRY(SMP_CUDA(cudaEventRecord, m->ready, c->compute));
    l->posted++;
    *request = (smp_request){.handle = m, .lane = index, .active = true};
    return progress_lane(c, l);
}

static smp_status staged_send(void *context, int lane, int64_t tag, const void *data, int64_t bytes,
                              smp_request *request)
{
    (void)tag;
    return start(context, lane, (char *)data, bytes, request);
}

static smp_status staged_receive(void *context, int lane, int64_t tag, void *data, int64_t bytes,
                                 smp_request *request)
{
    (void)tag;
    return start(context, lane, data, bytes, request);
}

static smp_status staged_test(void *context, smp_request *request, bool *done)
{
    staged_context *c = context;
    *done = true;
    if (!request->active)
        return SMP_OK;
    message *m = request->handle;
    if (m->finished < m->bytes)
        SMP_TRY(staged_progress(context));
    *done = m->finished == m->bytes;
    if (!*done)
        return SMP_OK;
    if (!c->lane[request->lane].outgoing)
        SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, c->compute, m->done, 0));
    m->active = false;
    *request = (smp_request){.active = false};
    return SMP_OK;
}

static smp_status staged_reduce(void *context, const smp_sum *sum, smp_reduction **out)
{
    return smp__staged_reduce_start(((staged_context *)context)->reduce, sum, out);
}

static smp_status staged_reduce_test(void *context, smp_reduction **reduction, bool *done)
{
    staged_context *c = context;
    SMP_TRY(staged_progress(c));
    return smp__staged_reduce_test(c->reduce, reduction, done);
}

const smp_transport smp__transport_staged = {
    .name = "staged",
    .max_message_bytes = INT64_MAX,
    .open = staged_open,
    .close = staged_close,
    .max_tag = staged_max_tag,
    .send = staged_send,
    .receive = staged_receive,
    .test = staged_test,
    .progress = staged_progress,
    .reduce = staged_reduce,
    .reduce_test = staged_reduce_test,
};
