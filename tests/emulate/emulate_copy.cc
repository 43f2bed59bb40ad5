/* Copies and fills. What CUDA leaves open is decided so that a missing wait shows: a copy from
 * pinned memory reads when it runs; from pageable memory, when it is enqueued (CUDA stages it); to
 * pageable memory it is finished when the call returns. A direction that contradicts the addresses
 * and a range that leaves its allocation are errors. */
#include <cstring>
#include <memory>

#include "emulate_state.h"

namespace
{

struct rows {
    char *target;
    const char *source;
    size_t target_pitch, source_pitch, width, height;
};

size_t reach(size_t pitch, size_t width, size_t height)
{
    return pitch * (height - 1) + width;
}

cudaError_t check(const rows &copy, cudaMemcpyKind kind)
{
    if (copy.width > copy.target_pitch || copy.width > copy.source_pitch)
        return cudaErrorInvalidValue;
    const size_t target_bytes = reach(copy.target_pitch, copy.width, copy.height);
    const size_t source_bytes = reach(copy.source_pitch, copy.width, copy.height);
    const emulate_place to = emulate_where(copy.target, target_bytes);
    const emulate_place from = emulate_where(copy.source, source_bytes);
    if (to == emulate_place::mixed || from == emulate_place::mixed || !copy.target || !copy.source)
        return cudaErrorInvalidValue;
    const bool to_device = to == emulate_place::device, from_device = from == emulate_place::device;
    if (kind != cudaMemcpyDefault &&
        (to_device != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
         from_device != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice)))
        return cudaErrorInvalidValue;
    if (copy.height == 1 && copy.target < copy.source + copy.width &&
        copy.source < copy.target + copy.width)
        emulate_die("a copy between ranges that overlap");
    return cudaSuccess;
}

void carry_out(const rows &copy)
{
    for (size_t y = 0; y < copy.height; y++)
        memcpy(copy.target + y * copy.target_pitch, copy.source + y * copy.source_pitch,
               copy.width);
}

/* Of a stream that is captured what pageable memory has or gets; of the stream NULL everything,
 * since it would wait for that. */
bool refused_in_capture(cudaStream_t stream, bool pageable)
{
    return (!stream || (pageable && emulate_is_captured(stream))) && emulate_capture_spoil();
}

/* `waits`: the call returns when the copy is done. */
cudaError_t copy_rows(rows copy, cudaMemcpyKind kind, cudaStream_t stream, bool waits)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (copy.width == 0 || copy.height == 0)
        return cudaSuccess;
    const cudaError_t code = check(copy, kind);
    if (code != cudaSuccess)
        return call.done(code);
    const bool staged = emulate_where(copy.source, copy.width) == emulate_place::pageable;
    waits |= emulate_where(copy.target, copy.width) == emulate_place::pageable;
    if (refused_in_capture(stream, staged || waits))
        return call.done(cudaErrorStreamCaptureUnsupported);
    std::shared_ptr<std::vector<char>> stage;
    if (staged && !waits) {
        stage = std::make_shared<std::vector<char>>(copy.width * copy.height);
        carry_out(
            {stage->data(), copy.source, copy.width, copy.source_pitch, copy.width, copy.height});
        copy.source = stage->data();
        copy.source_pitch = copy.width;
    }
    emulate_stream_put(stream, {[copy, stage] {
                                    carry_out(copy);
                                    return true;
                                },
                                true});
    return call.done(waits ? emulate_stream_finish(stream) : cudaSuccess);
}

cudaError_t fill(void *target, int value, size_t bytes, cudaStream_t stream)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (bytes == 0)
        return cudaSuccess;
    if (refused_in_capture(stream, false))
        return call.done(cudaErrorStreamCaptureUnsupported);
    const emulate_place place = emulate_where(target, bytes);
    if (place != emulate_place::device && place != emulate_place::pinned)
        return call.done(cudaErrorInvalidValue);
    emulate_stream_put(stream, {[target, value, bytes] {
                                    memset(target, value, bytes);
                                    return true;
                                },
                                true});
    return cudaSuccess;
}

} // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_rows(
        {static_cast<char *>(target), static_cast<const char *>(source), bytes, bytes, bytes, 1},
        kind, stream, false);
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy_rows(
        {static_cast<char *>(target), static_cast<const char *>(source), bytes, bytes, bytes, 1},
        kind, nullptr, kind != cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                              size_t source_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_rows({static_cast<char *>(target), static_cast<const char *>(source), target_pitch,
                      source_pitch, width, height},
                     kind, stream, false);
}

cudaError_t cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return copy_rows({static_cast<char *>(target), static_cast<const char *>(source), target_pitch,
                      source_pitch, width, height},
                     kind, nullptr, kind != cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream)
{
    return fill(target, value, bytes, stream);
}

cudaError_t cudaMemset(void *target, int value, size_t bytes)
{
    return fill(target, value, bytes, nullptr);
}

} // extern "C"
