#include "trace_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace fsccl::trace {
namespace {

using OrderedJson = nlohmann::ordered_json;

double us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

OrderedJson named(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

std::string wait_name(const Event& blocked) {
  std::string name = fmt::format("waits for rank {}", blocked.peer);
  if (!blocked.duty.empty()) name += " to " + blocked.duty;
  if (blocked.freed_by) name += fmt::format(" (freed by operation {})", blocked.freed_by);
  return name;
}

std::vector<Span> spans_of(const Recording& recording) {
  std::vector<Span> spans;
  std::map<std::pair<int, uint64_t>, size_t> open;
  int64_t end_ns = recording.last_look_ns;
  for (const Event& event : recording.events) {
    end_ns = std::max(end_ns, event.at_ns);
    const std::pair key{event.communicator, event.sequence};
    if (event.kind == "submitted") {
      const auto found = recording.communicators.find(event.communicator);
      const bool known = found != recording.communicators.end();
      open[key] = spans.size();
      spans.push_back({recording.rank,
                       known ? found->second.name : "",
                       known ? found->second.size : 0,
                       &event,
                       event.at_ns,
                       0,
                       false,
                       {}});
    }
    const auto at = open.find(key);
    if (at == open.end()) continue;
    Span& span = spans[at->second];
    const bool blocked = event.kind == "blocked", completed = event.kind == "completed";
    if ((blocked || completed) && !span.waits.empty() && !span.waits.back().end_ns)
      span.waits.back().end_ns = event.at_ns;
    if (blocked) span.waits.push_back({&event, event.at_ns, 0});
    if (completed) {
      span.end_ns = event.at_ns;
      span.complete = true;
      open.erase(at);
    }
  }
  for (Span& span : spans) {
    if (!span.complete) span.end_ns = end_ns;
    if (!span.waits.empty() && !span.waits.back().end_ns) span.waits.back().end_ns = span.end_ns;
  }
  return spans;
}

std::string as_perfetto(const std::vector<Recording>& job) {
  int64_t begin_ns = INT64_MAX;
  for (const Recording& recording : job)
    if (!recording.events.empty()) begin_ns = std::min(begin_ns, recording.events.front().at_ns);
  OrderedJson events = OrderedJson::array();
  for (const Recording& recording : job) {
    events.push_back(named("process_name", recording.rank, 0,
                           fmt::format("rank {} on {}", recording.rank, recording.host)));
    for (const auto& [id, communicator] : recording.communicators)
      events.push_back(named("thread_name", recording.rank, id,
                             fmt::format("{} (rank {} of {})", communicator.name, communicator.rank,
                                         communicator.size)));
    for (const Span& span : spans_of(recording)) {
      const OrderedJson where = {{"pid", span.rank}, {"tid", span.call->communicator}};
      OrderedJson one = {{"ph", "X"},
                         {"name", span.call->operation},
                         {"ts", us(span.begin_ns - begin_ns)},
                         {"dur", us(span.end_ns - span.begin_ns)},
                         {"args",
                          {{"operation", span.call->sequence},
                           {"count", span.call->count},
                           {"dtype", span.call->dtype},
                           {"complete", span.complete}}}};
      one.update(where);
      events.push_back(std::move(one));
      for (const Span::Wait& wait : span.waits) {
        OrderedJson inner = {{"ph", "X"},
                             {"name", wait_name(*wait.blocked)},
                             {"ts", us(wait.begin_ns - begin_ns)},
                             {"dur", us(wait.end_ns - wait.begin_ns)}};
        inner.update(where);
        events.push_back(std::move(inner));
      }
    }
    for (const Event& event : recording.events)
      if (event.kind == "lost" || event.kind == "left" || event.kind == "failed" ||
          event.kind == "suspect" || event.kind == "alive")
        events.push_back(
            {{"ph", "i"},
             {"s", "p"},
             {"name", event.kind == "failed" ? "failed"
                                             : fmt::format("rank {} {}", event.peer, event.kind)},
             {"ts", us(event.at_ns - begin_ns)},
             {"pid", recording.rank},
             {"tid", event.communicator}});
  }
  return OrderedJson{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace fsccl::trace
