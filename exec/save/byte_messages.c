/* Bytes between ranks; see the header. */
#include "exec/save/byte_messages.h"

#include <stdlib.h>

/* In comm->world: those of comm_collective.c and group_calls.c are others. */
enum { BYTES_TAG = 3 };
/* MPI counts the blocks and the bytes of a message by int. */
static const int64_t most_bytes = INT64_C(1) << 28;
enum { MOST_SPANS = 1 << 16 };

struct smp__byte_message {
    int rank;
    bool sends;
    MPI_Datatype type; /* of all of it, from the beginning of the file on */
};

static smp_status make_type(const smp__span *span, int n, MPI_Datatype *type)
{
    int *length = malloc((size_t)n * sizeof *length);
    MPI_Aint *at = malloc((size_t)n * sizeof *at);
    smp_status status =
        length && at ? SMP_OK : smp_fail_memory((size_t)n * (sizeof *length + sizeof *at));
    for (int i = 0; i < n && status == SMP_OK; i++) {
        length[i] = (int)(span[i].end - span[i].begin);
        at[i] = (MPI_Aint)span[i].begin;
    }
    if (status == SMP_OK)
        status = smp__comm_check(MPI_Type_create_hindexed(n, length, at, MPI_BYTE, type),
                                 "MPI_Type_create_hindexed");
    if (status == SMP_OK)
        status = smp__comm_check(MPI_Type_commit(type), "MPI_Type_commit");
    free(at);
    free(length);
    return status;
}

static smp_status make_room(smp__byte_messages *m)
{
    if (m->n < m->room)
        return SMP_OK;
    const int room = 2 * m->room + 8;
    struct smp__byte_message *message = realloc(m->message, (size_t)room * sizeof *message);
    if (message)
        m->message = message;
    MPI_Request *request = realloc(m->request, (size_t)room * sizeof *request);
    if (request)
        m->request = request;
    if (!message || !request)
        return smp_fail_memory((size_t)room * (sizeof *message + sizeof *request));
    m->room = room;
    return SMP_OK;
}

static smp_status add(smp__byte_messages *m, int rank, bool sends, const smp__span *span, int n)
{
    SMP_TRY(make_room(m));
    struct smp__byte_message *message = &m->message[m->n];
    *message = (struct smp__byte_message){.rank = rank, .sends = sends};
    SMP_TRY(make_type(span, n, &message->type));
    m->request[m->n++] = MPI_REQUEST_NULL;
    return SMP_OK;
}

smp_status smp__byte_messages_add(smp__byte_messages *m, int rank, bool sends,
                                  const smp__spans *spans)
{
    smp__span *piece = malloc(MOST_SPANS * sizeof *piece);
    smp_status status = piece ? SMP_OK : smp_fail_memory(MOST_SPANS * sizeof *piece);
    int64_t bytes = 0;
    int n = 0;
    for (int32_t i = 0; i < spans->n && status == SMP_OK; i++)
        for (int64_t at = spans->at[i].begin; at < spans->at[i].end && status == SMP_OK;
             at = piece[n - 1].end) {
            if (n == MOST_SPANS || bytes == most_bytes) {
                status = add(m, rank, sends, piece, n);
                n = 0;
                bytes = 0;
            }
            const int64_t left = spans->at[i].end - at, most = most_bytes - bytes;
            piece[n++] = (smp__span){at, at + (left < most ? left : most)};
            bytes += piece[n - 1].end - at;
            m->bytes += piece[n - 1].end - at;
        }
    if (n > 0 && status == SMP_OK)
        status = add(m, rank, sends, piece, n);
    free(piece);
    return status;
}

smp_status smp__byte_messages_begin(smp__byte_messages *m, smp_comm *comm, bool sends, char *base)
{
    for (int i = 0; i < m->n; i++) {
        const struct smp__byte_message *message = &m->message[i];
        if (message->sends != sends)
            continue;
        if (sends)
            SMP_TRY(smp__comm_check(MPI_Isend(base, 1, message->type, message->rank, BYTES_TAG,
                                              comm->world, &m->request[i]),
                                    "MPI_Isend"));
        else
            SMP_TRY(smp__comm_check(MPI_Irecv(base, 1, message->type, message->rank, BYTES_TAG,
                                              comm->world, &m->request[i]),
                                    "MPI_Irecv"));
    }
    return SMP_OK;
}

smp_status smp__byte_messages_test(smp__byte_messages *m, int *left)
{
    *left = 0;
    for (int i = 0; i < m->n; i++) {
        int flag = 1;
        if (m->request[i] == MPI_REQUEST_NULL)
            continue;
        SMP_TRY(smp__comm_check(MPI_Test(&m->request[i], &flag, MPI_STATUS_IGNORE), "MPI_Test"));
        *left += !flag;
        if (flag)
            smp__progress_note();
    }
    return SMP_OK;
}

void smp__byte_messages_free(smp__byte_messages *m, const smp_comm *comm)
{
    if (comm->failed)
        return;
    for (int i = 0; i < m->n; i++)
        MPI_Type_free(&m->message[i].type);
    free(m->message);
    free(m->request);
    *m = (smp__byte_messages){0};
}
