/* Events. A record is an object of its own that the event points to until it is recorded again: who
 * waits holds on to the record that was the last one when the wait was enqueued. */
#include <algorithm>
#include <memory>
#include <time.h>
#include <vector>

#include "emulate_state.h"

namespace
{

struct event_record {
    bool passed = false;
    double time_s = 0;
};

double now_s()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

} // namespace

struct CUevent_st {
    unsigned flags;
    std::shared_ptr<event_record> last; /* NULL: never recorded */
};

namespace
{

std::vector<std::unique_ptr<CUevent_st>> events;

auto find(cudaEvent_t event)
{
    return std::find_if(events.begin(), events.end(),
                        [event](const auto &own) { return own.get() == event; });
}

cudaError_t check(cudaEvent_t event)
{
    return find(event) != events.end() ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

} // namespace

void emulate_forget_events()
{
    events.clear();
}

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!event)
        return call.done(cudaErrorInvalidValue);
    events.push_back(std::make_unique<CUevent_st>(CUevent_st{flags, nullptr}));
    *event = events.back().get();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(event) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    events.erase(find(event));
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(event) != cudaSuccess || emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (emulate_is_captured(stream) && emulate_capture_spoil())
        return call.done(cudaErrorStreamCaptureUnsupported);
    const std::shared_ptr<event_record> record = std::make_shared<event_record>();
    event->last = record;
    emulate_stream_put(stream, {[record] {
                                    record->time_s = now_s();
                                    return record->passed = true;
                                },
                                false});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(event) != cudaSuccess || emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (flags != cudaEventWaitDefault)
        return call.done(cudaErrorInvalidValue);
    if (emulate_is_captured(stream) && emulate_capture_spoil())
        return call.done(cudaErrorStreamCaptureUnsupported);
    if (event->last && !event->last->passed)
        emulate_stream_put(stream, {[record = event->last] { return record->passed; }, false});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulate_progress();
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(event) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    return call.done(!event->last || event->last->passed ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(event) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (event->last)
        emulate_run_until([record = event->last] { return record->passed; });
    return call.done(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (check(start) != cudaSuccess || check(end) != cudaSuccess || !start->last || !end->last ||
        (start->flags | end->flags) & cudaEventDisableTiming)
        return call.done(cudaErrorInvalidResourceHandle);
    if (!start->last->passed || !end->last->passed)
        return call.done(cudaErrorNotReady);
    *milliseconds = static_cast<float>((end->last->time_s - start->last->time_s) * 1e3);
    return cudaSuccess;
}

} // extern "C"
