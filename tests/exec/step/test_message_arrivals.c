/* When a recorded step sees its messages: smp__messages_look asks the transport for what is awaited
 * and not sent, in every chunk, and notes the first time that it is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/step/messages.h"

enum { MICROBATCHES = 2, CHUNKS = 2, CHANNELS = 2, REQUESTS = CHUNKS * CHANNELS * MICROBATCHES };

/* What has arrived, and which requests were asked for, by their handle's place in `done`. */
typedef struct network {
    bool done[REQUESTS];
    int asked[REQUESTS];
} network;

static smp_status ask(void *context, smp_request *request, bool *done)
{
    network *n = context;
    const int index = (int)((bool *)request->handle - n->done);
    assert_in_range(index, 0, REQUESTS - 1);
    assert_true(request->active);
    n->asked[index]++;
    *done = n->done[index];
    return SMP_OK;
}

typedef struct job {
    network net;
    smp_transport transport;
    smp_device device;
    smp__endpoint endpoint;
    smp_request request[REQUESTS];
    double arrived_us[REQUESTS];
    smp__channel channel[CHUNKS][CHANNELS];
    smp__chunk chunk[CHUNKS];
    smp__work work;
    smp s;
} job;

static int place_of(int chunk, int channel, int microbatch)
{
    return (chunk * CHANNELS + channel) * MICROBATCHES + microbatch;
}

/* The first channel of a chunk receives, the other one sends; all are under way but the receive of
 * the last chunk's last micro-batch. */
static void open_job(job *j)
{
    *j = (job){.transport.test = ask, .device.host_memory = true};
    for (int c = 0; c < CHUNKS; c++) {
        for (int i = 0; i < CHANNELS; i++) {
            const int first = place_of(c, i, 0);
            for (int mb = 0; mb < MICROBATCHES; mb++)
                j->request[first + mb] =
                    (smp_request){.handle = &j->net.done[first + mb], .active = true};
            j->channel[c][i] = (smp__channel){.outgoing = i == 1,
                                              .request = &j->request[first],
                                              .arrived_us = i == 1 ? NULL : &j->arrived_us[first]};
        }
        j->chunk[c] = (smp__chunk){.n_channel = CHANNELS, .channel = j->channel[c]};
    }
    j->request[place_of(CHUNKS - 1, 0, MICROBATCHES - 1)].active = false;
    j->endpoint = (smp__endpoint){.transport = &j->transport, .context = &j->net};
    j->work = (smp__work){.chunks = CHUNKS, .microbatches = MICROBATCHES, .chunk = j->chunk};
    j->s = (smp){.device = &j->device, .endpoint = &j->endpoint, .work = &j->work};
    assert_int_equal(smp__record_open(1, &j->s.record), SMP_OK);
}

/* Looks, and compares how often each request was asked for so far. */
static void look(job *j, const int *asked)
{
    assert_int_equal(smp__messages_look(&j->s), SMP_OK);
    for (int i = 0; i < REQUESTS; i++)
        if (j->net.asked[i] != asked[i])
            fail_msg("request %d: asked for %d times, expected %d", i, j->net.asked[i], asked[i]);
}

static void test_message_arrivals_are_noted_once(void **state)
{
    (void)state;
    static job j;
    open_job(&j);
    for (int i = 0; i < REQUESTS; i++)
        j.net.done[i] = true;
    j.net.done[place_of(0, 0, 1)] = false;
    smp__record_begin(j.s.record, smp_clock_s() - 1.0);
    look(&j, (const int[REQUESTS]){1, 1, 0, 0, 1, 0, 0, 0});
    const double first_us = j.arrived_us[place_of(0, 0, 0)];
    assert_true(first_us >= 1e6);
    assert_true(j.arrived_us[place_of(1, 0, 0)] >= first_us);
    assert_true(j.arrived_us[place_of(0, 0, 1)] == 0.0);
    assert_true(j.arrived_us[place_of(1, 0, 1)] == 0.0);
    j.net.done[place_of(0, 0, 1)] = true;
    look(&j, (const int[REQUESTS]){2, 2, 0, 0, 2, 0, 0, 0});
    assert_true(j.arrived_us[place_of(0, 0, 0)] == first_us);
    assert_true(j.arrived_us[place_of(0, 0, 1)] > first_us);
    smp__record_close(j.s.record);
}

/* The step has ended, a device would wait, or there is no transport. */
static void test_message_arrivals_are_not_looked_for(void **state)
{
    (void)state;
    static const int none[REQUESTS];
    static job j;
    open_job(&j);
    smp__record_begin(j.s.record, smp_clock_s());
    smp__record_end(j.s.record, 0);
    look(&j, none);
    smp__record_begin(j.s.record, smp_clock_s());
    j.device.host_memory = false;
    look(&j, none);
    j.device.host_memory = true;
    j.endpoint.context = NULL;
    look(&j, none);
    smp__record_close(j.s.record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_arrivals_are_noted_once),
        cmocka_unit_test(test_message_arrivals_are_not_looked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
