#include "trace_hang.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "trace_state.h"

namespace fsccl::trace {
namespace {

std::string seconds(int64_t ns) { return fmt::format("{:.3f} s", static_cast<double>(ns) / 1e9); }

int64_t latest(const States& states) {
  int64_t at = 0;
  for (const auto& [rank, state] : states)
    at = std::max({at, state.last_ns, state.recording->last_look_ns});
  return at;
}

std::string line_of(int rank, const State& state, int64_t end_ns) {
  std::string text =
      fmt::format("rank {} (pid {} on {})", rank, state.recording->pid, state.recording->host);
  for (const Inside& in : state.inside) {
    text += fmt::format(": {}{} of '{}' {} {}", in.failed ? "" : "in ", describe(in.call), in.name,
                        in.failed ? "failed, after" : "for", seconds(end_ns - in.call.at_ns));
    if (in.blocked_on) text += fmt::format(", waits for rank {}", *in.blocked_on);
  }
  if (state.inside.empty() && state.last)
    text += fmt::format(": in no operation; {} {} {} before the end", describe(*state.last),
                        state.last->kind, seconds(end_ns - state.last->at_ns));
  for (const auto& [id, communicator] : state.recording->communicators)
    if (!communicator.error.empty())
      text += fmt::format("; '{}' failed: {}", communicator.name, communicator.error);
  if (state.unnamed)
    text += fmt::format(
        "; {} calls are left out, because their communicators had no room in the recorder's table",
        state.unnamed);
  return text;
}

// Finds two ranks that call different operations with the same number.
bool find_disagreement(const States& states, Verdict* verdict) {
  std::map<std::pair<std::string, uint64_t>, std::pair<int, const Event*>> first;
  for (const auto& [rank, state] : states)
    for (const auto& [tag, calls] : state.calls)
      for (const auto& [sequence, event] : calls) {
        const auto [known, is_new] = first.try_emplace({tag, sequence}, rank, event);
        if (is_new) continue;
        const Event& other = *known->second.second;
        if (other.operation == event->operation && other.count == event->count &&
            other.dtype == event->dtype && other.peer == event->peer)
          continue;
        if (got_over(state, *event) || got_over(states.at(known->second.first), other)) continue;
        // The ranks in the minority are guilty, if there is one.
        std::map<std::string, std::vector<int>> by_call;
        for (const auto& [each, theirs] : states) {
          const auto of_tag = theirs.calls.find(tag);
          if (of_tag == theirs.calls.end() || !of_tag->second.contains(sequence)) continue;
          by_call[describe(*of_tag->second.at(sequence))].push_back(each);
        }
        verdict->cause = "disagree";
        verdict->communicator = state.recording->communicators.at(event->communicator).name;
        verdict->operation = describe(other);
        const auto fewest = std::min_element(
            by_call.begin(), by_call.end(),
            [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
        const bool outvoted = std::any_of(by_call.begin(), by_call.end(), [&](const auto& one) {
          return one.second.size() > fewest->second.size();
        });
        verdict->guilty = fewest->second;
        if (!outvoted) verdict->guilty = {known->second.first, rank};  // either may be wrong
        verdict->text = fmt::format(
            "On '{}' rank {} calls {}, rank {} calls {}: all ranks must issue the same operations "
            "in the same order.",
            verdict->communicator, known->second.first, describe(other), rank, describe(*event));
        return true;
      }
  return false;
}

// Returns the ranks that died, each with those that saw it, which went on without it or did not.
std::map<int, std::vector<int>> deaths_in(const States& states, bool got_over) {
  std::map<int, std::vector<int>> seen_by;
  std::set<int> recovered;
  for (const Loss& loss : losses_in(states)) {
    if (loss.got_over) recovered.insert(loss.dead);
    std::vector<int>& by = seen_by[loss.dead];
    if (by.empty() || by.back() != loss.by) by.push_back(loss.by);
  }
  std::erase_if(seen_by,
                [&](const auto& one) { return recovered.contains(one.first) != got_over; });
  return seen_by;
}

bool find_death(const States& states, Verdict* verdict) {
  const std::map<int, std::vector<int>> seen_by = deaths_in(states, false);
  if (seen_by.empty()) return false;
  verdict->cause = "died";
  for (const auto& [dead, by] : seen_by) {
    verdict->guilty.push_back(dead);
    verdict->text += fmt::format("{}Rank {} died, as rank(s) {} saw",
                                 verdict->text.empty() ? "" : " ", dead, fmt::join(by, ", "));
    const auto found = states.find(dead);
    if (found == states.end()) {
      verdict->text += "; it left no recording.";
      continue;
    }
    const State& state = found->second;
    if (!state.inside.empty()) {
      verdict->operation = describe(state.inside.front().call);
      verdict->communicator = state.inside.front().name;
      verdict->text += fmt::format(", in {} of '{}'.", verdict->operation, verdict->communicator);
    } else if (state.last) {
      verdict->text += fmt::format(", after {}.", describe(*state.last));
    } else {
      verdict->text += ".";
    }
  }
  return true;
}

// Returns the rank for which this rank waits in that operation: the rank that it names, or else the
// first that has not called the operation. A rank that has completed the operation is not returned:
// its signals have arrived, and this rank does not see them.
std::optional<int> waits_for(const States& states, int rank, const Inside& in) {
  const auto has_completed = [&](int other) {
    const auto found = states.find(other);
    if (found == states.end()) return false;
    const auto last = found->second.completed.find(in.tag);
    return last != found->second.completed.end() && last->second >= in.call.sequence;
  };
  if (in.blocked_on && *in.blocked_on != rank && !has_completed(*in.blocked_on))
    return in.blocked_on;
  for (const auto& [other, state] : states) {
    if (other == rank) continue;
    const auto count = state.submitted.find(in.tag);
    const bool member =
        std::any_of(state.recording->communicators.begin(), state.recording->communicators.end(),
                    [&](const auto& one) { return one.second.tag == in.tag; });
    if (member && (count == state.submitted.end() || count->second < in.call.sequence))
      return other;
  }
  return {};
}

struct End {
  int rank = 0;
  Inside waited_in;  // the wait of the last rank of the chain
  bool cycle = false;
};

// Returns the first of a rank's operations in which it waits for another rank, and that rank.
std::optional<End> next_of(const States& states, int rank) {
  const auto found = states.find(rank);
  if (found == states.end()) return {};
  for (const Inside& in : found->second.inside)
    if (const std::optional<int> next = waits_for(states, rank, in)) return End{*next, in, false};
  return {};
}

std::optional<End> follow(const States& states, int rank) {
  std::set<int> visited;
  std::optional<End> end;
  for (int at = rank;;) {
    if (!visited.insert(at).second) {
      end->cycle = true;
      end->rank = at;
      return end;
    }
    if (std::optional<End> next = next_of(states, at)) {
      end = std::move(next);
      at = end->rank;
      continue;
    }
    const auto found = states.find(at);
    if (!end && found != states.end() && !found->second.inside.empty())
      end = End{at, found->second.inside.front(), false};
    return end;
  }
}

// A suspicion that still holds at the end: the rank that reports it, since when, and if the suspect
// is stopped.
struct Suspicion {
  int by = 0;
  int64_t since_ns = 0;
  bool stopped = false;
};
// Returns the last report of this rank about `rank` if it calls `rank` a suspect, or null.
const Event* suspicion_by(const State& state, int rank) {
  const Event* last = nullptr;
  for (const Event& event : state.recording->events)
    if (event.peer == rank && (event.kind == "suspect" || event.kind == "alive")) last = &event;
  return last && last->kind == "suspect" ? last : nullptr;
}

// Returns true if rank `by` was seen to be stopped after this report. It may then have missed that
// the rank which it suspects is alive again.
bool is_stale(const States& states, int by, const Event& report) {
  return std::any_of(states.begin(), states.end(), [&](const auto& one) {
    const Event* const stop = suspicion_by(one.second, by);
    return stop && stop->stopped && stop->at_ns > report.at_ns;
  });
}

std::optional<Suspicion> suspicion_of(const States& states, int rank) {
  std::optional<Suspicion> found;
  for (const auto& [by, state] : states) {
    const Event* const last = suspicion_by(state, rank);
    if (!last || is_stale(states, by, *last)) continue;
    const int64_t since_ns = last->at_ns - last->silent_ms * 1'000'000;
    if (!found || since_ns < found->since_ns)
      found = Suspicion{by, since_ns, found && found->stopped};
    found->stopped |= last->stopped;
  }
  return found;
}

std::string text_of(const Suspicion& suspicion, int rank, int64_t end_ns) {
  return fmt::format(
      "Rank {} is a suspect: {}. Rank {} saw it silent since {} before the end of the recordings.",
      rank,
      suspicion.stopped ? "stopped (SIGSTOP, a debugger)"
                        : "its process is stopped, or its host cut off",
      suspicion.by, seconds(end_ns - suspicion.since_ns));
}

// Finds silent ranks for which no rank waits yet.
bool find_suspect(const States& states, int64_t end_ns, Verdict* verdict) {
  std::set<int> silent;
  for (const auto& [by, state] : states)
    for (const Event& event : state.recording->events)
      if (event.kind == "suspect") silent.insert(event.peer);
  for (const int rank : silent) {
    const std::optional<Suspicion> suspicion = suspicion_of(states, rank);
    if (!suspicion) continue;
    verdict->cause = "suspect";
    verdict->guilty.push_back(rank);
    verdict->text += (verdict->text.empty() ? "" : " ") + text_of(*suspicion, rank, end_ns);
  }
  return !verdict->guilty.empty();
}

// Tells of the rank at which a chain of waits ends.
void tell_of_missing(const States& states, const End& end, int64_t end_ns, Verdict* verdict) {
  const int guilty = end.rank;
  const auto found = states.find(guilty);
  const bool called = found != states.end() &&
                      found->second.submitted.contains(end.waited_in.tag) &&
                      found->second.submitted.at(end.waited_in.tag) >= end.waited_in.call.sequence;
  if (has_left(states, guilty, end.waited_in.tag)) {
    verdict->cause = "left";
    verdict->text = fmt::format(
        "Rank {} has left (destroyed its communicator, or ended) before it {} {} of '{}'.", guilty,
        called ? "completed" : "called", verdict->operation, verdict->communicator);
    return;
  }
  verdict->cause = called ? "stuck" : "absent";
  if (called)
    verdict->text = fmt::format(
        "Rank {} has called {} of '{}' and does not move on: its process is stopped, or gets no "
        "processor.",
        guilty, verdict->operation, verdict->communicator);
  else if (found == states.end())
    verdict->text = fmt::format("Rank {}, for which {} of '{}' waits, has left no recording here.",
                                guilty, verdict->operation, verdict->communicator);
  else
    verdict->text = fmt::format(
        "Rank {} has not called {} of '{}'; the last that it did was {} ({}), {} before the end of "
        "the recording: it is outside of FSCCL, or stopped.",
        guilty, verdict->operation, verdict->communicator,
        found->second.last ? describe(*found->second.last) : "nothing",
        found->second.last ? found->second.last->kind : "-",
        seconds(end_ns - (found->second.last ? found->second.last->at_ns : end_ns)));
}

bool find_wait(const States& states, int64_t end_ns, Verdict* verdict) {
  std::map<int, std::pair<int, End>> ends;  // how many chains end at a rank, and how
  for (const auto& [rank, state] : states) {
    if (state.inside.empty()) continue;
    if (const std::optional<End> end = follow(states, rank)) {
      auto& [times, kept] = ends[end->rank];
      // a duty says more than the operation of the rank that has it
      if (times++ == 0 || !end->waited_in.call.duty.empty()) kept = *end;
    }
  }
  if (ends.empty()) return false;
  const auto most = std::max_element(
      ends.begin(), ends.end(), [](auto& a, auto& b) { return a.second.first < b.second.first; });
  const int guilty = most->first;
  const End& end = most->second.second;
  verdict->guilty = {guilty};
  verdict->operation = describe(end.waited_in.call);
  verdict->communicator = end.waited_in.name;
  if (end.cycle) {
    verdict->cause = "cycle";
    verdict->guilty.clear();
    int at = guilty;
    do {
      verdict->guilty.push_back(at);
      at = next_of(states, at)->rank;  // each rank of a circle waits
    } while (at != guilty);
    verdict->text = fmt::format(
        "Ranks {} wait for each other in a circle: they issue operations of several communicators "
        "in different orders.",
        fmt::join(verdict->guilty, ", "));
    return true;
  }
  if (const std::optional<Suspicion> suspicion = suspicion_of(states, guilty)) {
    verdict->cause = "suspect";
    verdict->text =
        fmt::format("{} It is waited for in {} of '{}'.", text_of(*suspicion, guilty, end_ns),
                    verdict->operation, verdict->communicator);
    return true;
  }
  if (!end.waited_in.call.duty.empty()) {
    verdict->cause = "stuck";
    verdict->text = fmt::format(
        "Rank {} has to {} of '{}', for which others have waited for {}: it is in an operation "
        "that does not end, outside of "
        "FSCCL, or "
        "stopped.",
        guilty, end.waited_in.call.duty, end.waited_in.name,
        seconds(end_ns - end.waited_in.since_ns));
    return true;
  }
  tell_of_missing(states, end, end_ns, verdict);
  return true;
}

// Finds the first failure that its rank got over, or did not get over.
bool find_failure(const States& states, bool over, Verdict* verdict) {
  const Event* first = nullptr;
  int where = 0;
  for (const auto& [rank, state] : states)
    for (const Event& event : state.recording->events)
      if (event.kind == "failed" && got_over(state, event) == over &&
          (!first || event.at_ns < first->at_ns))
        first = &event, where = rank;
  if (!first) return false;
  const auto& communicators = states.at(where).recording->communicators;
  const auto found = communicators.find(first->communicator);
  verdict->cause = "failed";
  verdict->guilty = {where};
  verdict->communicator = found == communicators.end() ? "" : found->second.name;
  verdict->operation = fmt::format("operation {}", first->sequence);
  verdict->text = fmt::format("'{}' failed first on rank {}: {}", verdict->communicator, where,
                              found == communicators.end() ? "" : found->second.error);
  return true;
}

// Tells of a job that goes on, or has ended well.
void tell_of_none(const States& states, Verdict* verdict) {
  verdict->cause = "none";
  verdict->text = "Every rank has completed what it called.";
  if (Verdict earlier; find_failure(states, true, &earlier))
    verdict->text += fmt::format(" Before, {}", earlier.text);
}

}  // namespace

Verdict find_cause(const std::vector<Recording>& job) {
  Verdict verdict;
  States states;
  for (const Recording& recording : job) states.emplace(recording.rank, state_of(recording));
  const int64_t end_ns = latest(states);
  for (const auto& [rank, state] : states) verdict.ranks.push_back(line_of(rank, state, end_ns));
  if (find_death(states, &verdict) || find_disagreement(states, &verdict)) return verdict;
  // A time-out fails the ranks that wait, so the rank for which they waited says more than their
  // failure.
  if (!find_wait(states, end_ns, &verdict) && !find_failure(states, false, &verdict) &&
      !find_suspect(states, end_ns, &verdict))
    tell_of_none(states, &verdict);
  for (const auto& [dead, by] : deaths_in(states, true))
    verdict.text += fmt::format("{} Rank {} died earlier, and others went on without it.",
                                verdict.text.ends_with('.') ? "" : ".", dead);
  return verdict;
}

std::string as_json(const Verdict& verdict) {
  return nlohmann::ordered_json{{"cause", verdict.cause},
                                {"guilty", verdict.guilty},
                                {"communicator", verdict.communicator},
                                {"operation", verdict.operation},
                                {"text", verdict.text},
                                {"ranks", verdict.ranks}}
      .dump();
}

}  // namespace fsccl::trace
