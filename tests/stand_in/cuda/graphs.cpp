// The driver's functions for the capture of streams. They make no graph: work that is put on a
// stream meanwhile runs at once, as if replayed, and a launch of the graph does nothing. But calls
// that CUDA forbids during a capture break a rule: a query of the stream, a wait for it, and making
// it wait for work from before the capture.
#include <set>

#include "stream.h"

using namespace fsccl::stand_in;

namespace {

struct Graphs {
  std::mutex mutex;
  std::set<const void*> all;  // graphs, and executable graphs made of them
  void* add() {
    const std::lock_guard lock(mutex);
    void* const made = new char;
    all.insert(made);
    count("graphs", 1);
    return made;
  }
  bool has(const void* graph) {
    const std::lock_guard lock(mutex);
    return all.count(graph) != 0;
  }
  bool remove(void* graph) {
    const std::lock_guard lock(mutex);
    if (!all.erase(graph)) return false;
    delete static_cast<char*>(graph);
    count("graphs", -1);
    return true;
  }
};

Graphs& graphs() {
  static auto* const graphs = new Graphs;
  return *graphs;
}

Code destroy(const char* function, void* graph) {
  if (const Code code = enter(function)) return code;
  return graphs().remove(graph) ? kSuccess : refuse(function, kInvalidHandle, "graph %p", graph);
}

}  // namespace

extern "C" {

Code cuStreamBeginCapture_v2(StreamHandle handle, int mode) {
  if (const Code code = enter("cuStreamBeginCapture_v2", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream || stream == stream->device.null_stream)
    return refuse("cuStreamBeginCapture_v2", kCaptureUnsupported, "stream %p", handle);
  if (mode != 0)
    return refuse("cuStreamBeginCapture_v2", kNotSupported,
                  "mode %d: the stand-in has the global one alone", mode);
  if (stream->capturing.exchange(true))
    return refuse("cuStreamBeginCapture_v2", kIllegalState, "of a stream that is being captured");
  ++captures();
  return kSuccess;
}

Code cuStreamEndCapture(StreamHandle handle, void** graph) {
  if (const Code code = enter("cuStreamEndCapture", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream || !graph) return refuse("cuStreamEndCapture", kInvalidHandle, "stream %p", handle);
  if (!stream->capturing.exchange(false))
    return refuse("cuStreamEndCapture", kIllegalState, "of a stream that is not captured");
  --captures();
  *graph = graphs().add();
  return kSuccess;
}

Code cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  if (const Code code = enter("cuGraphInstantiateWithFlags", Needs::context)) return code;
  if (!executable || flags || !graphs().has(graph))
    return refuse("cuGraphInstantiateWithFlags", kInvalidHandle, "graph %p", graph);
  *executable = graphs().add();
  return kSuccess;
}

Code cuGraphLaunch(void* executable, StreamHandle handle) {
  if (const Code code = enter("cuGraphLaunch", Needs::context)) return code;
  if (!graphs().has(executable) || !stream_of(handle))
    return refuse("cuGraphLaunch", kInvalidHandle, "graph %p", executable);
  return kSuccess;
}

Code cuGraphExecDestroy(void* executable) { return destroy("cuGraphExecDestroy", executable); }
Code cuGraphDestroy(void* graph) { return destroy("cuGraphDestroy", graph); }

}  // extern "C"
