/* Streams: lazy queues, and who runs what in them when. Whoever waits or queries runs items; which
 * stream's is next is random, but a stream that was chosen tends to be chosen again, so that
 * streams get far ahead of each other and fall far behind.
 *
 * The stream NULL and streams without cudaStreamNonBlocking wait for each other as in CUDA: an
 * item keeps how far the others must have come. */
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "emulate_kernel.h"
#include "emulate_state.h"
#include "nccl.h"

namespace
{

struct position {
    std::shared_ptr<const uint64_t> finished; /* of the other stream */
    uint64_t needed;
};

struct queued {
    emulate_item item;
    std::vector<position> after;
};

} // namespace

struct CUstream_st {
    int device;
    unsigned flags;
    int priority;
    bool destroyed; /* its items run all the same */
    uint64_t enqueued = 0;
    std::shared_ptr<uint64_t> finished = std::make_shared<uint64_t>(0);
    std::deque<queued> queue;

    CUstream_st(int device_, unsigned flags_, int priority_)
        : device(device_), flags(flags_), priority(priority_), destroyed(false)
    {
    }
};

bool emulate_running_item;

namespace
{

std::vector<std::unique_ptr<CUstream_st>> streams; /* the NULL ones of devices among them */
CUstream_st *null_stream[64];
size_t favourite;
long most_queued;

CUstream_st *add_stream(int device, unsigned flags, int priority)
{
    streams.push_back(std::make_unique<CUstream_st>(device, flags, priority));
    return streams.back().get();
}

CUstream_st *resolve(cudaStream_t stream)
{
    if (stream && stream != cudaStreamLegacy)
        return stream;
    CUstream_st *&own = null_stream[emulate_current_device()];
    if (!own)
        own = add_stream(emulate_current_device(), cudaStreamDefault, 0);
    return own;
}

bool is_null(const CUstream_st *stream)
{
    return stream == null_stream[stream->device];
}

bool exists(cudaStream_t stream)
{
    return std::any_of(streams.begin(), streams.end(), [stream](const auto &own) {
        return own.get() == stream && !own->destroyed;
    });
}

bool run_head(CUstream_st &stream)
{
    queued &head = stream.queue.front();
    for (const position &other : head.after)
        if (*other.finished < other.needed)
            return false;
    head.after.clear();
    if (head.item.touches_memory) {
        emulate_memory_open();
        emulate_traffic_begin();
    }
    emulate_running_item = true;
    const bool done = head.item.run();
    emulate_running_item = false;
    emulate_traffic_end(done);
    if (!done)
        return false;
    stream.queue.pop_front();
    ++*stream.finished;
    return true;
}

/* One item of some stream. */
bool run_one()
{
    const size_t n = streams.size();
    if (n == 0 || emulate_failed())
        return false;
    const emulate_order order = emulate_setting().order;
    if (order == emulate_order::random && emulate_random_below(4) == 0)
        favourite = emulate_random_below(n);
    else if (order != emulate_order::random)
        favourite = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t k = (favourite + i) % n;
        CUstream_st &stream = *streams[order == emulate_order::backward ? n - 1 - k : k];
        if (stream.queue.empty() || !run_head(stream))
            continue;
        favourite = k;
        if (stream.destroyed && stream.queue.empty())
            streams.erase(std::find_if(streams.begin(), streams.end(), [&stream](const auto &own) {
                return own.get() == &stream;
            }));
        return true;
    }
    return false;
}

/* One at least, if any can run. */
void run_some()
{
    for (size_t n = 1 + emulate_random_below(8); n > 0 && run_one(); n--)
        ;
}

} // namespace

cudaError_t emulate_stream_check(cudaStream_t stream)
{
    return !stream || stream == cudaStreamLegacy || exists(stream) ? cudaSuccess
                                                                   : cudaErrorInvalidResourceHandle;
}

void emulate_stream_put(cudaStream_t handle, emulate_item item)
{
    CUstream_st *stream = resolve(handle);
    if (emulate_capture_take(stream, item))
        return;
    queued entry{std::move(item), {}};
    for (const auto &other : streams)
        if (other.get() != stream && other->device == stream->device && !other->queue.empty() &&
            !((other->flags | stream->flags) & cudaStreamNonBlocking) &&
            (is_null(stream) || is_null(other.get())))
            entry.after.push_back({other->finished, other->enqueued});
    stream->enqueued++;
    stream->queue.push_back(std::move(entry));
    if (stream->priority < 0)
        most_queued = std::max(most_queued, static_cast<long>(stream->queue.size()));
}

void emulate_run_until(const std::function<bool()> &done)
{
    while (!emulate_failed() && !done())
        if (!run_one())
            usleep(20); /* for another process */
}

cudaError_t emulate_stream_finish(cudaStream_t handle)
{
    CUstream_st *stream = resolve(handle);
    emulate_run_until([stream] { return stream->queue.empty(); });
    return cudaSuccess;
}

void emulate_enqueue(cudaStream_t stream, std::function<bool()> item)
{
    emulate_call call;
    if (emulate_stream_check(stream) != cudaSuccess)
        emulate_die("a library was called with a stream that does not exist");
    if (call.error == cudaSuccess)
        emulate_stream_put(stream, {std::move(item), true});
}

void emulate_progress()
{
    emulate_call call;
    if (call.error == cudaSuccess)
        run_some();
}

void emulate_forget_streams()
{
    streams.clear();
    std::fill(std::begin(null_stream), std::end(null_stream), nullptr);
    favourite = 0;
}

extern "C" {

long emulate_most_queued(void)
{
    return std::exchange(most_queued, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!stream || flags & ~static_cast<unsigned>(cudaStreamNonBlocking))
        return call.done(cudaErrorInvalidValue);
    *stream = add_stream(emulate_current_device(), flags, std::min(0, std::max(-5, priority)));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    *priority = resolve(stream)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!stream || stream == cudaStreamLegacy || !exists(stream))
        return call.done(cudaErrorInvalidResourceHandle);
    stream->destroyed = true;
    if (stream->queue.empty())
        streams.erase(std::find_if(streams.begin(), streams.end(),
                                   [stream](const auto &own) { return own.get() == stream; }));
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    return call.done(emulate_stream_finish(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    run_some();
    return call.done(resolve(stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    const int device = emulate_current_device();
    emulate_run_until([device] {
        return std::all_of(streams.begin(), streams.end(), [device](const auto &stream) {
            return stream->device != device || stream->queue.empty();
        });
    });
    return call.done(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!function)
        return call.done(cudaErrorInvalidValue);
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    emulate_stream_put(stream, {[function, data] {
                                    emulate_memory_close();
                                    function(data);
                                    return true;
                                },
                                false});
    return cudaSuccess;
}

} // extern "C"
