/* Graphs: a stream that is captured keeps its items, with the arguments that they were given, and
 * every launch of the graph puts copies of them into a stream. What may not be asked for meanwhile
 * spoils the capture, as in CUDA with cudaStreamCaptureModeThreadLocal: waits, queries, memory.
 * More strictly than in CUDA, so do events of the captured stream, which would bring in other
 * streams: nothing here captures several. One capture at a time. */
#include <algorithm>
#include <memory>
#include <thread>

#include "emulate_state.h"

struct CUgraph_st {
    std::vector<emulate_item> node;
};

struct CUgraphExec_st {
    std::vector<emulate_item> node;
};

namespace
{

enum { NODE_BYTES = 1 << 10 }; /* of the device, made up: how much it is nobody says */

struct {
    cudaStream_t stream; /* NULL: nothing is captured */
    std::thread::id thread;
    bool spoiled;
    std::vector<emulate_item> node;
} capture;

std::vector<std::unique_ptr<CUgraph_st>> graphs;
std::vector<std::unique_ptr<CUgraphExec_st>> instances;
long instantiated;

template <typename T> auto find(std::vector<std::unique_ptr<T>> &all, const T *one)
{
    return std::find_if(all.begin(), all.end(),
                        [one](const auto &own) { return own.get() == one; });
}

} // namespace

bool emulate_is_captured(cudaStream_t stream)
{
    return stream && stream == capture.stream;
}

bool emulate_capture_take(cudaStream_t stream, const emulate_item &item)
{
    if (!emulate_is_captured(stream))
        return false;
    capture.node.push_back(item);
    return true;
}

bool emulate_capture_spoil()
{
    const bool captures = capture.stream && capture.thread == std::this_thread::get_id();
    capture.spoiled |= captures;
    return captures;
}

emulate_unsafe_call::emulate_unsafe_call()
{
    if (error == cudaSuccess && emulate_capture_spoil())
        error = done(cudaErrorStreamCaptureUnsupported);
}

void emulate_forget_graphs()
{
    capture = {};
    graphs.clear();
    for (const auto &instance : instances)
        emulate_memory_give(instance->node.size() * NODE_BYTES);
    instances.clear();
    instantiated = 0;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (mode != cudaStreamCaptureModeThreadLocal)
        return call.done(cudaErrorInvalidValue);
    if (!stream || stream == cudaStreamLegacy)
        return call.done(cudaErrorStreamCaptureUnsupported);
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    if (capture.stream)
        return call.done(cudaErrorIllegalState);
    capture = {stream, std::this_thread::get_id(), false, {}};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    *graph = nullptr;
    if (!emulate_is_captured(stream))
        return call.done(cudaErrorIllegalState);
    const bool spoiled = capture.spoiled;
    if (!spoiled) {
        graphs.push_back(std::make_unique<CUgraph_st>(CUgraph_st{std::move(capture.node)}));
        *graph = graphs.back().get();
    }
    capture = {};
    return call.done(spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (find(graphs, graph) == graphs.end() || nodes) /* how many there are is all that is asked */
        return call.done(cudaErrorInvalidValue);
    *n = graph->node.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *instance, cudaGraph_t graph,
                                 unsigned long long flags)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (find(graphs, graph) == graphs.end() || flags != 0)
        return call.done(cudaErrorInvalidValue);
    if (instantiated == emulate_setting().graphs ||
        !emulate_memory_take(graph->node.size() * NODE_BYTES))
        return call.done(cudaErrorMemoryAllocation);
    instantiated++;
    instances.push_back(std::make_unique<CUgraphExec_st>(CUgraphExec_st{graph->node}));
    *instance = instances.back().get();
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t instance, cudaStream_t stream)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    return call.done(find(instances, instance) == instances.end() ? cudaErrorInvalidValue
                                                                  : emulate_stream_check(stream));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream)
{
    emulate_unsafe_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (find(instances, instance) == instances.end())
        return call.done(cudaErrorInvalidValue);
    if (emulate_stream_check(stream) != cudaSuccess)
        return call.done(cudaErrorInvalidResourceHandle);
    for (const emulate_item &item : instance->node)
        emulate_stream_put(stream, item);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    const auto found = find(graphs, graph);
    if (found == graphs.end())
        return call.done(cudaErrorInvalidValue);
    graphs.erase(found);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    const auto found = find(instances, instance);
    if (found == instances.end())
        return call.done(cudaErrorInvalidValue);
    emulate_memory_give(instance->node.size() * NODE_BYTES);
    instances.erase(found);
    return cudaSuccess;
}

} // extern "C"
