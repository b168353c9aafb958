#include "trace_state.h"

#include <algorithm>
#include <set>

#include "fsccl/fsccl.h"

namespace fsccl::trace {
namespace {

const RecordedCommunicator* communicator_of(const Recording& recording, const Event& event) {
  const auto found = recording.communicators.find(event.communicator);
  return found == recording.communicators.end() ? nullptr : &found->second;
}

bool is_call(const Event& event) { return event.kind == "submitted" || event.kind == "completed"; }

// Adds what the rank is in on a communicator. `wait` is null if it does not wait outside of
// operations.
void add_inside(int id, const Event* wait, State* state) {
  const Recording& recording = *state->recording;
  const RecordedCommunicator& communicator = recording.communicators.at(id);
  const auto failure = state->failures.find(id);
  const bool failed = failure != state->failures.end();
  if (!communicator.lives || (failed && state->last_active > failure->second)) return;
  if (wait) {
    Inside inside{communicator.tag, communicator.name, *wait, wait->peer, wait->at_ns, failed};
    inside.call.sequence = UINT64_MAX;  // no rank has completed it
    state->inside.push_back(std::move(inside));
  }
  const auto calls = state->calls.find(communicator.tag);
  if (calls == state->calls.end()) return;
  const auto next = calls->second.upper_bound(state->completed[communicator.tag]);
  if (next == calls->second.end()) return;
  const Event& call = *next->second;
  Inside inside{communicator.tag, communicator.name, call, {}, call.at_ns, failed};
  for (const Event& event : recording.events)
    if (event.kind == "blocked" && event.communicator == id && event.sequence == next->first)
      inside.blocked_on = event.peer, inside.since_ns = event.at_ns;
  state->inside.push_back(std::move(inside));
}

// Internal communicators are named after that of the program, whose ranks their errors name.
bool is_internal(const Recording& recording, const RecordedCommunicator& communicator) {
  return std::any_of(
      recording.communicators.begin(), recording.communicators.end(),
      [&](const auto& one) { return communicator.name.starts_with(one.second.name + ", "); });
}

// Returns the rank of the job that has this rank in a communicator, if that is known.
std::optional<int> job_rank(const States& states, const RecordedCommunicator& of, int rank) {
  bool same = true;  // as far as recordings show, ranks have the same numbers as in the job
  for (const auto& [number, state] : states)
    for (const auto& [id, communicator] : state.recording->communicators) {
      if (id == 0 || communicator.tag != of.tag) continue;
      if (communicator.rank == rank) return number;
      same = same && communicator.rank == number && of.size == state.recording->ranks;
    }
  return same ? std::optional(rank) : std::nullopt;
}

// Returns the rank whose death this event tells of: a loss, or a failure by a death that another
// rank saw.
std::optional<int> death_in(const States& states, const Recording& recording, const Event& event) {
  if (event.kind == "lost") return event.peer;
  const RecordedCommunicator* const communicator = communicator_of(recording, event);
  if (event.kind != "failed" || event.peer < 0 || !communicator ||
      communicator->error_code != FSCCL_ERR_PEER_DEAD || is_internal(recording, *communicator))
    return {};
  const std::optional<int> dead = job_rank(states, *communicator, event.peer);
  return dead && !has_left(states, *dead, communicator->tag) ? dead : std::nullopt;
}

// Returns true if the last that this rank did was to fail. It does not count if rank `by` is the
// one of which this rank says that it is dead: then each says so of the other.
bool ended_by_failure(const States& states, int rank, int by) {
  const auto found = states.find(rank);
  if (found == states.end()) return false;
  const Event* const failure = found->second.ending;
  return failure && death_in(states, *found->second.recording, *failure) != by;
}

}  // namespace

State state_of(const Recording& recording) {
  State state;
  state.recording = &recording;
  std::map<int, const Event*> waits;  // by communicator: the wait that is not over
  for (const Event& event : recording.events) {
    const RecordedCommunicator* const communicator = communicator_of(recording, event);
    if (!communicator) continue;
    state.last_ns = std::max(state.last_ns, event.at_ns);
    if (event.kind == "failed") state.ending = &event;
    if (event.kind == "failed") state.failures.emplace(event.communicator, &event);
    if (event.kind == "completed") state.ending = nullptr;
    if (event.kind == "left") state.left.emplace(communicator->tag, event.peer);
    if (is_call(event)) state.last = &event;
    if (is_call(event) || event.kind == "waits") state.last_active = &event;
    if (event.communicator == 0) {  // several communicators have this number
      state.unnamed += event.kind == "submitted";
      continue;
    }
    const std::string& tag = communicator->tag;
    if (event.kind == "submitted") {
      state.submitted[tag] = std::max(state.submitted[tag], event.sequence);
      state.calls[tag][event.sequence] = &event;
    }
    if (event.kind == "completed") {
      state.completed[tag] = std::max(state.completed[tag], event.sequence);
      state.completions[event.communicator] = &event;
    }
    if (event.kind == "waits") waits[event.communicator] = &event;
    if (event.kind == "goes_on") waits.erase(event.communicator);
  }
  for (const auto& [id, communicator] : recording.communicators) {
    const auto wait = waits.find(id);
    if (id != 0) add_inside(id, wait == waits.end() ? nullptr : wait->second, &state);
  }
  std::stable_partition(state.inside.begin(), state.inside.end(),
                        [](const Inside& in) { return !in.failed; });
  return state;
}

bool got_over(const State& state, const Event& event) {
  const RecordedCommunicator* const ended = communicator_of(*state.recording, event);
  const bool gone = !ended || !ended->lives;
  return std::any_of(state.completions.begin(), state.completions.end(), [&](const auto& one) {
    const RecordedCommunicator* const of = communicator_of(*state.recording, *one.second);
    // An operation that was under way when it happened says nothing of what the program did then.
    const auto calls = state.calls.find(of->tag);
    if (calls == state.calls.end()) return false;
    const auto call = calls->second.find(one.second->sequence);
    return call != calls->second.end() && call->second > &event &&
           (gone || of->since_ns > event.at_ns);
  });
}

bool has_left(const States& states, int rank, const std::string& tag) {
  return std::any_of(states.begin(), states.end(),
                     [&](const auto& one) { return one.second.left.contains({tag, rank}); });
}

std::vector<Loss> losses_in(const States& states) {
  std::vector<Loss> losses;
  for (const auto& [rank, state] : states) {
    const Recording& recording = *state.recording;
    std::set<int> failed;  // communicators
    bool ends = false;     // the rank has failed, and completed nothing since
    for (const Event& event : recording.events) {
      if (event.kind == "completed") ends = false;
      const std::optional<int> dead = death_in(states, recording, event);
      if (dead && !ends && !failed.contains(event.communicator) &&
          !ended_by_failure(states, *dead, rank))
        losses.push_back({*dead, rank, got_over(state, event)});
      if (event.kind != "failed") continue;
      ends = true;
      failed.insert(event.communicator);
    }
  }
  return losses;
}

}  // namespace fsccl::trace
