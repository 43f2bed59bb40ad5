/* Links that are slower than the machine; see the header. */
#include "exec/transport/throttle.h"

#include <math.h>
#include <stdlib.h>

struct smp__late_send {
    const void *data;
    int bytes, peer, tag;
    MPI_Comm comm;
    double due_s;
    smp_request *request;
    smp__late_send *next;
};

smp_status smp__throttle_open(smp__throttle *throttle)
{
    const char *text = getenv("SMP_THROTTLE"); /* for tests */
    char *end = NULL;
    *throttle = (smp__throttle){0};
    if (!text)
        return SMP_OK;
    throttle->bytes_per_s = strtod(text, &end);
    if (!(throttle->bytes_per_s > 0.0) || !isfinite(throttle->bytes_per_s) || *end)
        return smp_fail(SMP_ERR_INPUT, "SMP_THROTTLE: got '%s', expected bytes per second", text);
    return SMP_OK;
}

static void free_list(smp__late_send *list)
{
    while (list) {
        smp__late_send *next = list->next;
        free(list);
        list = next;
    }
}

void smp__throttle_close(smp__throttle *throttle)
{
    free_list(throttle->first);
    free_list(throttle->unused);
    *throttle = (smp__throttle){0};
}

void smp__throttle_ask(const smp__throttle *throttle, smp__late_sum *sum)
{
    if (throttle->bytes_per_s > 0.0)
        *sum = (smp__late_sum){.asked_s = smp_clock_s()};
}

smp_status smp__throttle_begin(const smp__throttle *throttle, MPI_Comm comm, smp__late_sum *sum)
{
    if (throttle->bytes_per_s == 0.0)
        return SMP_OK;
    return smp__comm_check(
        MPI_Iallreduce(&sum->asked_s, &sum->latest_s, 1, MPI_DOUBLE, MPI_MAX, comm, &sum->request),
        "MPI_Iallreduce");
}

smp_status smp__throttle_arrived(smp__throttle *throttle, smp__late_sum *sum, int halves,
                                 int64_t bytes, bool *arrived)
{
    int flag = 0;
    *arrived = throttle->bytes_per_s == 0.0;
    if (*arrived)
        return SMP_OK;
    if (sum->due_s == 0.0) {
        SMP_TRY(smp__comm_check(MPI_Test(&sum->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
        if (!flag)
            return SMP_OK;
        throttle->sum_free_s = sum->due_s = fmax(sum->latest_s, throttle->sum_free_s) +
                                            halves * (double)bytes / throttle->bytes_per_s;
    }
    *arrived = smp_clock_s() >= sum->due_s;
    return SMP_OK;
}

smp_status smp__throttle_send(smp__throttle *throttle, const void *data, int bytes, int peer,
                              int tag, MPI_Comm comm, smp_request *request)
{
    smp__late_send *send = throttle->unused;
    if (send)
        throttle->unused = send->next;
    else if (!(send = malloc(sizeof *send)))
        return smp_fail_memory(sizeof *send);
    throttle->send_free_s =
        fmax(smp_clock_s(), throttle->send_free_s) + (double)bytes / throttle->bytes_per_s;
    *send = (smp__late_send){.data = data,
                             .bytes = bytes,
                             .peer = peer,
                             .tag = tag,
                             .comm = comm,
                             .due_s = throttle->send_free_s,
                             .request = request};
    if (throttle->last)
        throttle->last->next = send;
    else
        throttle->first = send;
    throttle->last = send;
    *request = (smp_request){.handle = NULL, .active = true};
    return SMP_OK;
}

smp_status smp__throttle_progress(smp__throttle *throttle)
{
    while (throttle->first && smp_clock_s() >= throttle->first->due_s) {
        smp__late_send *send = throttle->first;
        MPI_Request handle;
        SMP_TRY(smp__comm_check(MPI_Isend(send->data, send->bytes, MPI_BYTE, send->peer, send->tag,
                                          send->comm, &handle),
                                "MPI_Isend"));
        send->request->handle = (void *)handle;
        throttle->first = send->next;
        if (!throttle->first)
            throttle->last = NULL;
        send->next = throttle->unused;
        throttle->unused = send;
    }
    return SMP_OK;
}
